"""Stacks of choices on workloads of steps: the base of the modes that are such a stack, and of every changed stack.

A mode whose file derives from `Stacked` is a preset. `changed` makes the class of a mode whose stack the user changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from launchopt.batching.batch import StepBatch
from launchopt.command import Dtype, ShapeKey
from launchopt.devices.base import Device, GpuDevice, HostDevice, gpu_of, is_host
from launchopt.devices.prepared import Counters
from launchopt.devices.steps.fusions.gemm_plan import MOST_COLUMNS, StepGemm
from launchopt.errors import explained
from launchopt.modes.base import HOPPER, Mode, Prepared, PreparedSteps, Takes, no_steps, too_old
from launchopt.modes.options import SUBMIT_OPTIONS, KeepsGraphs, ModeOptions, RepeatsSteps
from launchopt.modes.stack import conflict, preset_stack
from launchopt.stack import EXPERT_FUSIONS, LOOPS, Fusion, Kernels, Stack, Submit
from launchopt.streams.chains.chain import ChainStream, Stream, chain_of
from launchopt.streams.chains.groups import Kind, fused_in, unwritten_of

if TYPE_CHECKING:
    from launchopt.devices.cpu.fused_steps import CpuSteps
    from launchopt.devices.steps.coalesced import CoalescedSteps
    from launchopt.devices.steps.fusions.makers import Makers
    from launchopt.devices.steps.graphs import StepGraphs
    from launchopt.devices.steps.loops import StepLoops

LEAST_CUDA = 12, 4  # oldest CUDA version whose driver repeats a step within one launch
MEANS: Mapping[Fusion, str] = {  # for each fusion, the rows that a workload must have
    Fusion.qkv: "the GEMMs of q, k and v",
    Fusion.gate_up: "the GEMMs of gate and up",
    Fusion.norm: "a norm",
    Fusion.rope_kv: "rotary embedding and a KV write",
    Fusion.attention: "attention",
    Fusion.silu: "SiLU(gate) * up behind one GEMM (if gate and up are two, add gate_up to mode.fuse)",
    Fusion.reduce: "an all-reduce (parallel.tensor=2 splits a model over GPUs)",
    **dict.fromkeys(EXPERT_FUSIONS, "a layer with experts (workload=moe)"),
    Fusion.epilogue: "bias, ReLU and scale in a row, or a residual add behind our own GEMM (mode.kernels=own)",
}


class Stacked(Mode):
    """A stack of choices. It takes whole steps."""

    takes = Takes.steps

    @property
    def together(self) -> int:
        """Most decode steps of a request that the driver issues together: mode.tokens if one launch repeats steps."""
        if self.stack.submit not in LOOPS:
            return 1
        return (self.options if isinstance(self.options, RepeatsSteps) else RepeatsSteps()).tokens

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the stack cannot run `stream`, or None."""
        if (rule := conflict(cls.name, cls.stack)) is not None:
            return rule.reason
        if (why := super().refusal(kind, stream)) is not None:
            return why
        if kind == "cpu" and cls.stack.pdl:
            return "mode.pdl needs a GPU: on the cpu device no launch overlaps another"
        if kind == "cpu" and cls.stack.kernels is not Kernels.cublaslt:
            return f"mode.kernels={cls.stack.kernels} needs a GPU: the cpu device has no kernels to choose from"
        if kind == "cuda" and cls.stack.submit in LOOPS and (why := _cannot_repeat(stream)):
            return why
        if stream.has_steps:
            return cls._lacking(chain_of(stream)) or (cls._unsupported(chain_of(stream)) if kind == "cuda" else None)
        if cls.stack != preset_stack(cls.name) and not cls.can_change(stream):
            return f"{no_steps(stream)}; use mode={cls.name} as it is, or a workload of steps, such as workload=layer"
        return None

    @classmethod
    def can_change(cls, stream: Stream) -> bool:
        """Return whether the changes to the preset have a meaning for a stream without steps of requests."""
        return False

    @classmethod
    def quantised_refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the stack cannot compute with the quantised weights of `stream`, or None if it can.

        On a GPU our own GEMM of decode steps does. It has one column a request, and no library's GEMM can replace it.
        """
        if kind == "cpu" or cls.stack.kernels is not Kernels.own or not stream.has_steps:
            return super().quantised_refusal(kind, stream)
        if any(shape.n > 1 for shape in stream.shapes if shape.packing):
            return "our GEMM of decode steps has no prompts with quantised weights: use workload.prompt_tokens=0"
        if stream.requests > MOST_COLUMNS:
            most = f"our GEMM of decode steps takes up to {MOST_COLUMNS} requests with quantised weights"
            return f"{most}, and this workload has {stream.requests}"
        return next(filter(None, map(_misfit, stream.shapes)), None)

    @classmethod
    def capability_refusal(cls, stream: Stream, capability: int) -> str | None:
        """Return why a GPU of this compute capability, times 10, lacks our GEMM of quantised weights; or None.

        Without quantised weights, the library's GEMM takes its place.
        """
        if capability >= HOPPER or not (stream.packing and stream.has_steps and cls.stack.kernels is Kernels.own):
            return None
        instead = "mode=kernel or batched, or workload.weights=none"
        return too_old(f"our GEMM of decode steps with {stream.packing.format} weights", capability, instead)

    @classmethod
    def _lacking(cls, stream: Stream) -> str | None:
        """Return which fusion, of those that the user added to the preset, the workload has no rows for; or None."""
        lacking = cls.stack.fuse - preset_stack(cls.name).fuse - fused_in(chain_of(stream), cls.stack)
        named = [each for each in Fusion if each in lacking]
        if not named:
            return None
        every = frozenset(
            each for each in Fusion if conflict(cls.name, replace(cls.stack, fuse=frozenset({each}))) is None
        )
        has = fused_in(chain_of(stream), replace(cls.stack, fuse=every))
        allowed = ", ".join(each for each in Fusion if each in has) or "none, with this mode.kernels"
        return explained(f"mode.fuse={named[0]}: this workload does not have {MEANS[named[0]]}", allowed)

    @classmethod
    def _unsupported(cls, stream: ChainStream) -> str | None:
        """Return which choice, of those that the user added to the preset, our kernels do not support; or None.

        A preset leaves such a fusion out: its rows are launched alone.
        """
        if cls.stack.kernels is Kernels.own and stream.dtype is Dtype.fp32:
            return "mode.kernels=own: our GEMM of decode steps takes fp16 and bf16"
        if Fusion.attention in cls.stack.fuse - preset_stack(cls.name).fuse and stream.attention is not None:
            from launchopt.devices.cuda.step_attention import refusal

            return None if (why := refusal(stream.attention)) is None else f"mode.fuse=attention: {why}"
        return None

    @classmethod
    def unwritten_of(cls, stream: Stream) -> frozenset[str]:
        """Return the nodes whose outputs stay inside fused launches."""
        return unwritten_of(chain_of(stream), cls.stack) if stream.has_steps else frozenset()

    @classmethod
    def shared_bytes(cls, stream: Stream, limits: Mapping[ShapeKey, int]) -> int:
        """Return the bytes of the angles and the sums of fused attention."""
        if stream.attention is None or Fusion.attention not in cls.stack.fuse:
            return 0
        from launchopt.devices.cuda.step_attention import memory_bytes

        return memory_bytes(stream.attention, max(limits.values()))

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> Prepared:
        """Plan the launches of every kind of step. Capture the graphs that are likely to be needed."""
        if is_host(device):
            return _on_host(self, device, limits)
        gpu = gpu_of(device)
        if self.stack.submit is Submit.graph:
            from launchopt.devices.steps.graphs import StepGraphs

            graphs = StepGraphs(gpu, limits, cached_of(self.options), self.stack, self._makers())
            gpu.warm_up()  # loads the kernels: a capture fails at a kernel that is not loaded
            graphs.capture_likely()
            return _Graphs(self, gpu, graphs)
        if self.stack.submit in LOOPS:
            from launchopt.devices.steps.loops import StepLoops

            loops = StepLoops(gpu, limits, cached_of(self.options), self.stack, self._makers())
            gpu.warm_up()
            loops.capture_likely()
            return _Graphs(self, gpu, loops)
        from launchopt.devices.steps.coalesced import CoalescedSteps

        return _Launched(self, gpu, CoalescedSteps(gpu, limits, self.stack, self._makers()))

    def _makers(self) -> Makers:
        """Return the makers of groups by kernels that are not our own or cuBLASLt's."""
        if self.stack.kernels is not Kernels.triton:
            return {}
        from launchopt.devices.triton.elementwise import TritonStages

        return {Kind.elementwise: TritonStages().fused}


def changed(preset: type[Mode], stack: Stack) -> type[Mode]:
    """Return the class of a mode, which began as `preset`, with another stack."""
    base = preset if issubclass(preset, Stacked) else Stacked
    is_own = stack.submit is preset_stack(preset.name).submit
    options = preset.options if is_own else SUBMIT_OPTIONS.get(stack.submit, ModeOptions)()
    members = {"name": preset.name, "stack": stack, "options": options, "__module__": preset.__module__}
    if stack.kernels is Kernels.triton:
        members |= {"packages": ("triton",), "extra": "torch"}
    own_strategy = "graph" if stack.submit in (Submit.graph, *LOOPS) else ""
    return type(preset.__name__, (base,), {**members, "own_strategy": own_strategy, "__doc__": base.__doc__})


def _cannot_repeat(stream: Stream) -> str | None:
    """Return why a GPU cannot repeat a step of `stream` within one launch, or None if it can."""
    if not stream.has_steps:
        return None
    if chain_of(stream).replicas > 1:
        return (
            "repeats a step with one copy of the weights, and this workload cycles over several: use a model of at "
            "least four times the size of the L2, or workload.replicas=1"
        )
    from launchopt.devices.cuda.info import cuda_of_driver

    found = cuda_of_driver()
    if found is not None and found < LEAST_CUDA:
        least, own = (".".join(map(str, each)) for each in (LEAST_CUDA, found))
        return f"needs a driver of CUDA {least} or newer, and this one is of CUDA {own}: use mode=graph"
    return None


def _misfit(shape: ShapeKey) -> str | None:
    """Return why our own GEMM of decode steps cannot read a quantised weight, or None if it can."""
    if not shape.packing or shape.dtype is Dtype.fp32:
        return None  # fp32 is refused in any case
    gemm = StepGemm(shape.dtype, shape.m, shape.k, (0, 0, 0, 0), packing=shape.packing)
    return None if gemm.refusal is None else f"our GEMM of decode steps: {gemm.refusal}"


def cached_of(options: ModeOptions) -> int:
    """Return the number of graphs, or recorded lists, to keep."""
    return (options if isinstance(options, KeepsGraphs) else KeepsGraphs()).cached


def _on_host(mode: Mode, host: HostDevice, limits: Mapping[ShapeKey, int]) -> Prepared:
    from launchopt.devices.cpu.fused_steps import CpuSteps

    is_recorded = mode.stack.submit in (Submit.graph, *LOOPS)
    steps = CpuSteps(host, limits, mode.stack, cached_of(mode.options) if is_recorded else 0)
    return _Recorded(mode, host, steps) if is_recorded else PreparedSteps(mode, host, steps.launch)


class _Launched(Prepared):
    """Launches whole steps, or replays graphs of steps or of loops of them, on a GPU."""

    def __init__(self, mode: Mode, gpu: GpuDevice, steps: CoalescedSteps | StepGraphs | StepLoops) -> None:
        super().__init__(mode, gpu)
        self._steps, self.left_out = steps, steps.left_out

    def start(self, warm_up: bool = False) -> None:
        """Begin a run."""
        self._steps.counters.start()

    def submit_steps(self, batch: StepBatch, flush_ns: int) -> None:
        """Launch the step, or replay its graph."""
        self._steps.submit(batch, flush_ns)

    def counters(self) -> Counters:
        """Return the times and counts of the graphs, and the count of commands that were not fused."""
        return self._steps.counters


class _Graphs(_Launched):
    """Replays graphs."""

    def __init__(self, mode: Mode, gpu: GpuDevice, graphs: StepGraphs | StepLoops) -> None:
        super().__init__(mode, gpu, graphs)
        self._graphs = graphs

    def close(self) -> None:
        """Destroy the graphs."""
        self._graphs.close()


class _Recorded(Prepared):
    """Replays recorded lists of calls on the CPU."""

    def __init__(self, mode: Mode, host: HostDevice, steps: CpuSteps) -> None:
        super().__init__(mode, host)
        self._steps, self._counters = steps, Counters(graph_replays=0)

    def start(self, warm_up: bool = False) -> None:
        """Begin a run."""
        self._counters.start()

    def submit_steps(self, batch: StepBatch, flush_ns: int) -> None:
        """Replay the lists of the steps as one launch."""
        self._steps.replay(batch, flush_ns)
        self._counters.replayed()

    def counters(self) -> Counters:
        """Return the number of replays."""
        return self._counters

    def close(self) -> None:
        """Drop the lists."""
        self._steps.close()
