"""Timing of single launches of a decode step in mode=megakernel: of complete launches, and of launches without a part.

The mode has executed its workload stream before. Each launch executes the last step of all requests again; `StepTiming`
resets the positions before the launch, outside its events. Launches use the replicas of the weights in turn, as the
steps of a run do. Before each measurement `StepTiming` restores all memory but weights to its content after the run.

Times are us between CUDA events around a launch. Launches are queued ahead, so the times contain no CPU time. With the
macro STAMPS=1 the kernel writes clock stamps (kernels/megakernel/config.cuh).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import cupy
import numpy as np
from numpy.typing import NDArray

from launchopt.devices.base import GpuDevice
from launchopt.devices.instructions.words import Instructions
from launchopt.devices.megakernel.step_account import clock_mhz
from launchopt.devices.steps.stages import step_of
from launchopt.errors import RunError
from launchopt.streams.chains.chain import chain_of
from launchopt.types import Array

if TYPE_CHECKING:
    from launchopt.devices.megakernel.launcher import Megakernel
    from launchopt.devices.megakernel.program import MegakernelProgram

WARM_UP = 16  # launches queued before the first timed one
CLOCK_LAUNCHES = 400  # launches queued while NVML reads the clock
# Macros of the timed kernels (kernels/megakernel/config.cuh).
PLAIN: Mapping[str, int] = {}
WITH_STAMPS, WITHOUT_WEIGHTS, WITHOUT_WAITS = {"STAMPS": 1}, {"WITHOUT": 1}, {"WITHOUT": 2}

Programs = list["MegakernelProgram"]  # one program per replica of the weights
Events: TypeAlias = "tuple[cupy.cuda.Event, cupy.cuda.Event]"  # events before and behind a launch


class Kept(NamedTuple):
    """An array, and a copy of its content before a measurement."""

    array: Array
    copy: Array


@dataclass(frozen=True, slots=True)
class StampedLaunch:
    """One launch: its us between events, its clock stamps, int64 [blocks, tasks, Stamp], and its clock rate in MHz."""

    us: float
    stamps: NDArray[np.int64]
    clock_mhz: float


class StepTiming:
    """Timing of the last decode step of all requests of `device`'s workload stream. steps: makes the launches."""

    def __init__(self, device: GpuDevice, steps: Megakernel) -> None:
        self._device, self._steps = device, steps
        stream = chain_of(device.work)
        each = (step_of(stream, stream.requests, replica) for replica in range(stream.replicas))
        self.lists: list[Instructions] = [steps.instructions_of(batch) for batch in each]
        with device.stream:
            state = device.state_of_sequences
            if state is not None:
                state.positions[1] -= 1  # the next step has the positions of the last one
            positions = [] if state is None else [state.positions]
            arenas = [array for arena, array in device.arenas.arrays.items() if not arena.is_weight]
            self._positions = [Kept(array, array.copy()) for array in positions]
            self._memory = [*(Kept(array, array.copy()) for array in arenas), *self._positions]
        device.synchronize()

    def programs(self, macros: Mapping[str, int] = PLAIN) -> Programs:
        """Return the programs of the step, one per replica of the weights, for the kernel with these macros."""
        stamped = bool(macros.get("STAMPS"))
        return [self._steps.variant(instructions, macros, stamped) for instructions in self.lists]

    def launches_us(self, programs: Programs, launches: int) -> list[float]:
        """Return the us of each of `launches` launches, which use the programs in turn."""
        self._put_back(self._memory)
        pairs = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(launches)]
        for i in range(WARM_UP):
            self._launch(programs[i % len(programs)])
        for i, pair in enumerate(pairs):
            self._launch(programs[i % len(programs)], pair)
        self._device.synchronize()
        return [_us(pair) for pair in pairs]

    def stamped(self, stamped: Programs, plain: Programs, launches: int) -> list[StampedLaunch]:
        """Return `launches` launches with stamps. Each is queued while a launch of a `plain` program runs."""
        self._put_back(self._memory)
        found = []
        for i in range(2 * len(stamped) + launches):
            which, pair = i % len(stamped), (cupy.cuda.Event(), cupy.cuda.Event())
            self._launch(plain[which - 1])
            self._launch(stamped[which], pair)
            self._device.synchronize()
            stamps = stamped[which].stamps.get()
            found.append(StampedLaunch(_us(pair), stamps[:, :-1], clock_mhz(stamps[:, -1])))
        return found[2 * len(stamped) :]

    def require_same(self, stamped: Programs, plain: Programs, spoiling: Programs) -> None:
        """Raise RunError unless stamped and plain launches store the same bytes, and spoiling launches different ones.

        spoiling: programs of a kernel that does not copy weights.
        """
        for one, other, third in zip(stamped, plain, spoiling, strict=True):
            self._put_back(self._memory)
            wanted, spoilt, found = self._left(other), self._left(third), self._left(one)
            if _same(wanted, spoilt):
                raise RunError("a decode step whose weights are not fetched leaves the same outputs")
            if not _same(wanted, found):
                raise RunError("the kernel that writes stamps leaves other outputs than the one that does not")

    def nvml_clock_mhz(self, programs: Programs) -> float | None:
        """Return the clock rate, in MHz, that NVML reports while launches run; None: NVML reports none."""
        self._device.state()  # the first call loads NVML, so that the next call is quick
        for i in range(CLOCK_LAUNCHES):
            self._launch(programs[i % len(programs)])
        clock = self._device.state().get("sm_clock_mhz")
        self._device.synchronize()
        return None if clock is None else float(clock)

    def _left(self, program: MegakernelProgram) -> list[Array]:
        """Return copies of all memory but weights after one launch."""
        self._launch(program)
        with self._device.stream:
            copies = [kept.array.copy() for kept in self._memory]
        self._device.synchronize()
        return copies

    def _launch(self, program: MegakernelProgram, pair: Events | None = None) -> None:
        """Reset the positions and launch the program, between the events of `pair` if it is given."""
        self._put_back(self._positions)
        if pair is None:
            program.launch()
            return
        pair[0].record(self._device.stream)
        program.launch()
        pair[1].record(self._device.stream)

    def _put_back(self, kept: Sequence[Kept]) -> None:
        for array, copy in kept:
            array.data.copy_from_device_async(copy.data, array.nbytes, self._device.stream)


def _us(pair: Events) -> float:
    return 1e3 * float(cupy.cuda.get_elapsed_time(*pair))


def _same(some: Sequence[Array], others: Sequence[Array]) -> bool:
    """Return whether arrays hold the same bytes. Values are not compared, since a NaN is not equal to itself."""
    pairs = zip(some, others, strict=True)
    return all(bool((one.view(np.uint8) == other.view(np.uint8)).all()) for one, other in pairs)
