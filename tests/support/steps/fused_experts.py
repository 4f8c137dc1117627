"""The fused launches of a layer with experts, run on the host's memory by the kernels themselves (cuda_on_host)."""

from __future__ import annotations

import enum

import numpy as np

from launchopt.devices.steps.expert_fusions import (
    FUSED,
    FUSED_DOWN,
    FUSED_GATE_UP,
    ROUTE,
    FusedLaunches,
    Memory,
    launches_of,
)
from launchopt.devices.steps.expert_operands import OPERANDS, StepOperands
from launchopt.kernels.shared_experts import STEPPED_WORDS
from launchopt.stack import Fusion
from launchopt.verify.commands import CheckSettings
from launchopt.verify.experts import verify_experts
from support.cuda_on_host import built, launch
from support.steps.expert_layers import LayerRun

CALLS = {
    kernel: f"struct Given {{ char *a, *b, *c, *d; {struct} p; }}; const Given& given = *(const Given*)arguments; "
    f"{kernel}(given.a, given.b, given.c, given.d, given.p)"
    for kernel, struct in (("expert_route", "ExpertRoute"), ("expert_fused", "ExpertFused"))
}
SINGLES = ("router", "top_k", "map", "permute", "silu_mul", "combine")  # commands that are alone in their groups
WRITTEN = {  # outputs of a launch without what is fused
    ROUTE: ("logits", "table", "map"),
    FUSED_GATE_UP: ("gate_up",),
    FUSED_DOWN: ("down",),
}


class How(enum.Enum):
    """How launches find their operands."""

    given = "given"
    table = "table"
    stepped = "stepped"


class FusedOnHost:
    """Steps whose fused launches run on the host, after the CPU device has computed all outputs."""

    def __init__(self, run: LayerRun, fuse: frozenset[Fusion], how: How, multiprocessors: int) -> None:
        self.run, self.fuse, self.how = run, fuse, how
        stream = run.stream
        self.launches = launches_of(fuse, bool(stream.packing))
        self.made = FusedLaunches(stream.layout, fuse, how is not How.given, multiprocessors)
        self.memory = [np.full(max(1, size), -1, np.int32) for size in self.made.words]
        self.memory[-1][:] = 0  # counters
        arrays = run.device.arenas.arrays
        addresses = {key: array.ctypes.data for key, array in arrays.items()}
        self.operands = StepOperands(stream, addresses, self.launches, 0)
        self.state = np.zeros(STEPPED_WORDS, np.int64)

    def poison(self, step: int, name: str) -> None:
        """Forget what a launch of a step writes."""
        region, layout = self.run.stream.layout.region, self.run.stream.layout
        written = [*WRITTEN[name]]
        written += ["activated"] * (name == FUSED_GATE_UP and Fusion.activate in self.fuse)
        written += ["gathered"] * (name == FUSED_GATE_UP and Fusion.route in self.fuse)
        written += ["out"] * (name == FUSED_DOWN and Fusion.combine in self.fuse)
        units = self.run.device.arenas.arrays[layout.activations]
        fields = [*region._fields]
        for each in written:
            first, stop = getattr(region, each), getattr(region, fields[fields.index(each) + 1])
            units[step * region.units + first : step * region.units + stop].view(np.uint8).fill(0xFF)

    def launch(self, step: int, at_once: int, seed: int, races: bool = False) -> None:
        """Run the fused launches of a step. at_once: blocks that run at a time."""
        stream = self.run.stream
        words = np.zeros(OPERANDS * len(self.launches), np.int64)
        self.operands.fill(words, step * stream.layout.region.units)
        places = Memory(*(each.ctypes.data for each in self.memory))
        self.state[0] = step
        for i, name in enumerate(self.launches):
            if name not in FUSED:
                self._execute(step, name)
                continue
            self.poison(step, name)
            stepped = [self.operands.stepped(i, self.state.ctypes.data)] if self.how is How.stepped else []
            made = self.made.of(name, places, *stepped)
            own = words[OPERANDS * i : OPERANDS * (i + 1)].copy()
            given = np.array([own.ctypes.data, 0, 0, 0], np.int64)
            given = {How.given: own, How.table: given, How.stepped: np.zeros(OPERANDS, np.int64)}[self.how]
            arguments = np.concatenate([given, made.launch.words])
            defines = {**made.defines, "DTYPE": int(stream.dtype), "INDIRECT": int(self.how is How.table)}
            library = built(made.kernel, CALLS[made.kernel], races=races, **defines)
            where = made.launch.grid, made.launch.block[0], made.launch.shared_bytes
            launch(library, *where, arguments.ctypes.data, seed=seed, at_once=at_once)
        assert not self.memory[-1].any(), "counters are 0 between launches"
        assert self.state.tolist() == ([step + 1, step, 0] if self.how is How.stepped else [step, 0, 0])

    def _execute(self, step: int, name: str) -> None:
        """Execute the commands of a launch that is not fused on the CPU device, with the present inputs."""
        active = self.run.stream.active
        singles, own = len(SINGLES), int(active[step])
        start = int(singles * step + 2 * active[:step].sum())
        at = {**{each: (i, 1) for i, each in enumerate(SINGLES[:4])}, "gate_up": (4, own), "silu_mul": (4 + own, 1)}
        at |= {"down": (5 + own, own), "combine": (5 + 2 * own, 1)}
        first, count = at[name]
        self.run.execute(start + first, start + first + count)

    def check(self) -> None:
        """Check all outputs of all steps."""
        found = verify_experts(self.run.stream, self.run.device.arenas, CheckSettings(64))
        assert found.ok, found
