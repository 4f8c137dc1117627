"""A rank of the tests of kernels/all_reduce.cu on the host: importable by name, as `spawn` needs.

The memory of each rank is a row of a shared segment: its activations, then flags and lines, which all ranks write.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype, Op, ShapeKey
from launchopt.devices.arenas import STORAGE, from_float32
from launchopt.devices.peers.launches import all_reduce_launch, peers_struct, signals_bytes
from launchopt.devices.peers.segment import PeerSegment, Team
from launchopt.kernels import source
from launchopt.kernels.shared import ALL_REDUCE_BLOCKS, AllReduceAccount
from support.cuda_on_host import built_of, launch

CALL = "auto w = (const u64*)arguments; {}((char*)w[0], (char*)w[1], (char*)w[2], 0, *(const AllReduce*)(w + 4))"
RANKS = 3
PLACES = 2  # parts are written to two places in turn
SPIN_FOREVER = 1 << 62


class Case(NamedTuple):
    """Sizes of an exchange: commands of [n, m] whose rows are `row` elements apart, in `rounds` launches.

    m: features of a part. The rows of gathered parts are `RANKS` times as far apart.
    """

    dtype: Dtype
    m: int
    n: int
    commands: int
    row: int
    rounds: int
    pdl: bool = False
    fewer: int = 0  # commands of every other launch; 0: as many
    op: Op = Op.ALL_REDUCE

    def commands_in(self, number: int) -> int:
        """Return the commands of round `number`."""
        return self.fewer if self.fewer and number % 2 else self.commands

    @property
    def wide(self) -> int:
        """Features of C."""
        return self.m * RANKS if self.op is Op.ALL_GATHER else self.m

    @property
    def elements(self) -> int:
        """Elements of the B of all commands. Those of the C are RANKS times as many at most."""
        return self.commands * self.n * self.row

    @property
    def memory_bytes(self) -> int:
        """Bytes of a rank's memory for `PLACES` parts and results, and for flags and lines of 8 ranks."""
        return self.signals_at + signals_bytes(8)

    @property
    def signals_at(self) -> int:
        """Bytes from the start of a rank's memory to its flags and lines."""
        return -(-PLACES * (1 + RANKS) * self.elements * 4 // 256) * 256

    def part(self, rank: int, number: int) -> NDArray[Any]:
        """Return the part of a rank in round `number`, in storage type [commands, n, m]."""
        generator = np.random.default_rng([rank, number])
        return np.asarray(
            from_float32(generator.standard_normal((self.commands_in(number), self.n, self.m), np.float32), self.dtype)
        )


def add(given: tuple[Case, Team]) -> tuple[list[NDArray[Any]], NDArray[np.uint64]]:
    """Launch all rounds of one rank; return the result of each, and the account."""
    case, team = given
    segment = PeerSegment.attach(team.segment, team.size, case.memory_bytes)
    memory = [segment.memory(rank) for rank in range(team.size)]
    bases = [each.ctypes.data for each in memory]
    generations, account = np.zeros(ALL_REDUCE_BLOCKS, np.uint64), np.zeros(len(AllReduceAccount), np.uint64)
    own = generations.ctypes.data, account.ctypes.data
    peers = peers_struct(team.rank, bases, [base + case.signals_at for base in bases], own)
    storage = np.dtype(STORAGE[case.dtype])
    shape = ShapeKey(case.wide, case.n, case.m, case.dtype, case.op)
    stride = case.n * case.row * storage.itemsize
    library = built_of(source("all_reduce"), CALL.format(case.op.name), DTYPE=int(case.dtype), PDL=int(case.pdl))
    mine, found = memory[team.rank][: case.signals_at].view(storage), []
    parts = mine[: PLACES * case.elements].reshape(PLACES, case.commands, case.n, case.row)[..., : case.m]
    sums = mine[PLACES * case.elements :][: PLACES * RANKS * case.elements]
    results = sums.reshape(PLACES, case.commands, case.n, RANKS * case.row)[..., : case.wide]
    rows = 0, case.row, RANKS * case.row
    for number in range(case.rounds):
        commands = case.commands_in(number)
        made = all_reduce_launch(shape, commands, rows, (0, stride, RANKS * stride), peers.ctypes.data)
        b, c = parts[number % PLACES, :commands], results[number % PLACES, :commands]
        b[...] = case.part(team.rank, number)
        words = np.concatenate([[bases[team.rank], b.ctypes.data, c.ctypes.data, 0], made.words]).astype(np.int64)
        launch(library, made.grid, made.block[0], 0, words.ctypes.data, seed=number, most_turns=SPIN_FOREVER)
        found.append(c.copy())
    del memory, mine, parts, sums, results, b, c
    segment.release()
    return found, account
