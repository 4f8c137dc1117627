"""A rank of the tests of kernels/all_reduce.cu on the host: importable by name, as `spawn` needs.

The memory of each rank is a row of a shared segment: its activations, then flags and lines, which all ranks write.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype, Op, ShapeKey
from launchopt.devices.arenas import STORAGE, from_float32
from launchopt.devices.peers.launches import all_reduce_launch, peers_struct, reduce_add_launch, signals_bytes
from launchopt.devices.peers.segment import PeerSegment, Team
from launchopt.kernels import source
from launchopt.kernels.shared_peers import ALL_REDUCE_BLOCKS, AllReduceAccount
from support.cuda_on_host import built_of, launch
from support.steps.programs import NORM_EPSILON

SEED = 5  # of residuals and gains, which are the same on all ranks
CALL = "auto w = (const u64*)arguments; {}((char*)w[0], (char*)w[1], (char*)w[2], 0, *(const AllReduce*)(w + 4))"
MOST = 8  # ranks of a case
FUSED_CALL = (
    "auto w = (const u64*)arguments; "
    "REDUCE_ADD{}((char*)w[0], (char*)w[1], (char*)w[2], {}w[3], *(const ReduceAdd*)(w + 4))"
)
PLACES = 2  # parts are written to two places in turn
SPIN_FOREVER = 1 << 62
POISON = 77  # of outputs before a launch


class Case(NamedTuple):
    """Sizes of an exchange: commands of [n, m] whose rows are `row` elements apart, in `rounds` launches.

    m: features of a part. The rows of gathered parts are `ranks` times as far apart.
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
    ranks: int = 3

    def commands_in(self, number: int) -> int:
        """Return the commands of round `number`."""
        return self.fewer if self.fewer and number % 2 else self.commands

    @property
    def wide(self) -> int:
        """Features of C."""
        return self.m * self.ranks if self.op is Op.ALL_GATHER else self.m

    @property
    def elements(self) -> int:
        """Elements of the B of all commands. Those of the C are `ranks` times as many at most."""
        return self.commands * self.n * self.row

    @property
    def memory_bytes(self) -> int:
        """Bytes of a rank's memory for `PLACES` parts and results, and for flags and lines of `MOST` ranks."""
        return self.signals_at + signals_bytes(MOST)

    @property
    def signals_at(self) -> int:
        """Bytes from the start of a rank's memory to its flags and lines."""
        return -(-PLACES * (1 + self.ranks) * self.elements * 4 // 256) * 256

    def part(self, rank: int, number: int) -> NDArray[Any]:
        """Return the part of a rank in round `number`, in storage type [commands, n, m]."""
        generator = np.random.default_rng([rank, number])
        return np.asarray(
            from_float32(generator.standard_normal((self.commands_in(number), self.n, self.m), np.float32), self.dtype)
        )


class Member:
    """A rank: its memory, and its struct Peers."""

    def __init__(self, case: Case, team: Team) -> None:
        self.segment = PeerSegment.attach(team.segment, team.size, case.memory_bytes)
        bases = [self.segment.memory(rank).ctypes.data for rank in range(team.size)]
        self.base, self.storage = bases[team.rank], np.dtype(STORAGE[case.dtype])
        self.generations = np.zeros(ALL_REDUCE_BLOCKS, np.uint64)
        self.account = np.zeros(len(AllReduceAccount), np.uint64)
        own = self.generations.ctypes.data, self.account.ctypes.data
        self.peers = peers_struct(team.rank, bases, [base + case.signals_at for base in bases], own)
        self.memory = self.segment.memory(team.rank)[: case.signals_at].view(self.storage)


def add(given: tuple[Case, Team]) -> tuple[list[NDArray[Any]], NDArray[np.uint64]]:
    """Launch all rounds of one rank; return the result of each, and the account."""
    case, team = given
    member, found = Member(case, team), []
    shape = ShapeKey(case.wide, case.n, case.m, case.dtype, case.op)
    stride = case.n * case.row * member.storage.itemsize
    library = built_of(source("all_reduce"), CALL.format(case.op.name), DTYPE=int(case.dtype), PDL=int(case.pdl))
    parts = member.memory[: PLACES * case.elements].reshape(PLACES, case.commands, case.n, case.row)[..., : case.m]
    sums = member.memory[PLACES * case.elements :][: PLACES * case.ranks * case.elements]
    results = sums.reshape(PLACES, case.commands, case.n, case.ranks * case.row)[..., : case.wide]
    rows = 0, case.row, case.ranks * case.row
    for number in range(case.rounds):
        commands = case.commands_in(number)
        made = all_reduce_launch(shape, commands, rows, (0, stride, case.ranks * stride), member.peers.ctypes.data)
        b, c = parts[number % PLACES, :commands], results[number % PLACES, :commands]
        b[...] = case.part(team.rank, number)
        words = np.concatenate([[member.base, b.ctypes.data, c.ctypes.data, 0], made.words]).astype(np.int64)
        launch(library, made.grid, made.block[0], 0, words.ctypes.data, seed=number, most_turns=SPIN_FOREVER)
        found.append(c.copy())
    account, member.memory = member.account, np.empty(0, member.storage)
    del parts, sums, results, b, c
    member.segment.release()
    return found, account


def residuals(case: Case) -> NDArray[Any]:
    """Return the residual of each column, then the gain of the norm, in storage type [commands * n + 1, m]."""
    values = np.random.default_rng(SEED).standard_normal((case.commands * case.n + 1, case.m), np.float32)
    return np.asarray(from_float32(values, case.dtype))


def add_to_residual(given: tuple[Case, bool, Team]) -> tuple[NDArray[Any], NDArray[np.uint64]]:
    """Launch REDUCE_ADD or REDUCE_ADD_NORM in all rounds; return sums and norms of the last one, and the account."""
    case, norms, team = given
    member = Member(case, team)
    call = FUSED_CALL.format("_NORM", "(char*)") if norms else FUSED_CALL.format("", "(i64)")
    macros = {"DTYPE": int(case.dtype), "PDL": int(case.pdl), "NORM_EPSILON": f"{NORM_EPSILON}f"}
    library = built_of(source("all_reduce"), call, **macros)
    parts = member.memory[: PLACES * case.elements].reshape(PLACES, case.commands, case.n, case.row)[..., : case.m]
    *residual, gain = residuals(case)
    added = np.ascontiguousarray(np.stack(residual).reshape(case.commands, case.n, case.m))
    out = np.full((2, case.commands, case.n, case.row), POISON, member.storage)
    item = member.storage.itemsize
    shape = ShapeKey(case.m, case.n, case.m, case.dtype, Op.ALL_REDUCE)
    strides = added.strides[0], case.n * case.row * item, out.strides[1]
    layout = (case.m, case.row, case.row, case.row, *strides, out.strides[0])
    for number in range(case.rounds):
        b = parts[number % PLACES]
        b[...] = case.part(team.rank, number)
        made = reduce_add_launch(shape, case.commands, layout, member.peers.ctypes.data)
        operands = [added.ctypes.data, b.ctypes.data, out.ctypes.data, gain.ctypes.data]
        words = np.concatenate([operands, made.words]).astype(np.int64)
        launch(library, made.grid, made.block[0], 0, words.ctypes.data, seed=number, most_turns=SPIN_FOREVER)
    account, member.memory = member.account, np.empty(0, member.storage)
    del parts, b
    member.segment.release()
    return out, account
