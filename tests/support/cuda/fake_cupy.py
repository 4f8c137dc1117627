"""A stand-in for CuPy: arrays, streams, events and kernels on the host, where all work is done when it is submitted."""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.command import EXPERT_OPS, Dtype, Op
from launchopt.devices.cuda.op_kernels import ARGS, QUANTISED_GEMV, TENSOR_GEMV
from launchopt.devices.feedback.in_launch import FIELDS
from launchopt.devices.feedback.stages import WORDS as ROW_WORDS
from launchopt.kernels.shared import ROW_DRAW, ROW_HISTORY, ROW_ID, STEP_LOOP
from launchopt.sampling import Sampling, SamplingKind
from support.cuda import fake_fp8, fake_quantised
from support.cuda.copying_kernels import fed_back, gather, memory_at, scatter
from support.cuda.fake_all_reduce import exchange
from support.cuda.fake_copy import COPY, STREAM
from support.cuda.fake_expert_fusions import expert_fused, expert_route
from support.cuda.fake_expert_kernels import expert_align, expert_gemm, experts, next_operands, through_table
from support.cuda.fake_kernels import FakeKernels, bias_relu_scale, elementwise, words_at
from support.cuda.fake_lt import FakeMatmul
from support.cuda.fake_memory import OnGpu, allocated

ELEMENTWISE = {op.name for op in (Op.RELU, Op.ADD, Op.SCALE, Op.BIAS, Op.SILU_MUL)}
STEP_LOOP_WORDS = {name: i for i, name in enumerate(STEP_LOOP.names or ())}
NO_SAMPLING = Sampling(SamplingKind.none)
FREE_BYTES = 1 << 30


class CUDARuntimeError(RuntimeError):
    """The error of CuPy's runtime, with the number of CUDA's error."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


def _check_status(status: int) -> None:
    if status:
        raise CUDARuntimeError(status)


class _Memory:
    """CuPy's allocation."""

    def __init__(self, size: int) -> None:
        self._bytes = np.zeros(size + 256, np.uint8)
        self.ptr = -(-self._bytes.ctypes.data // 256) * 256


class FakeStream:
    """CuPy's stream. While it is captured, launches are kept for the graph."""

    def __init__(self, cupy: FakeCupy, ptr: int) -> None:
        self._cupy, self.ptr = cupy, ptr

    def __enter__(self) -> FakeStream:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: all submitted work is complete."""

    def synchronize(self) -> None:
        self._cupy.on_wait()

    def wait_event(self, event: FakeEvent) -> None:
        """Do nothing: work is complete when it is submitted."""

    def begin_capture(self, mode: Any) -> None:
        self._cupy.capture([])

    def end_capture(self) -> Any:
        calls = self._cupy.captured.calls or []
        self._cupy.capture(None)
        return SimpleNamespace(upload=lambda stream: None, launch=lambda stream: [call() for call in calls])


class FakeEvent:
    """CuPy's event: the host's time when it was recorded."""

    def __init__(self, disable_timing: bool = False) -> None:
        self.ns = 0

    def record(self, stream: FakeStream) -> None:
        self.ns = time.monotonic_ns()

    def synchronize(self) -> None:
        """Do nothing: the event has happened."""


class FakeCupy:
    """The module cupy, for one device.

    sampling: how kernels that feed back sample, since the seed cannot be read from their arguments.
    fed_back: launches of kernels that feed back. on_wait: called when the host waits for the device.
    """

    __version__ = "0"

    def __init__(self) -> None:
        self.matmul, self.kernels = FakeMatmul(), FakeKernels(len(ARGS))
        self.captured = self.matmul.captured = self.kernels.captured
        self.copy = COPY(self._copied)
        self.sampling, self.fed_back = NO_SAMPLING, 0
        self.steps_left = 0  # of the loop that runs
        self.on_wait: Callable[[], object] = lambda: None
        self.streams, self.has_peer_access = 0, True
        runtime = SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            check_status=_check_status,
            streamQuery=lambda stream: 0,
            streamCaptureModeRelaxed=2,
            memcpyHostToDevice=1,
            memcpyDeviceToHost=2,
            memcpyAsync=lambda to, source, size, kind, stream: self._copied(to, source, size, stream),
            driverGetVersion=lambda: 13000,
            runtimeGetVersion=lambda: 13000,
            memGetInfo=lambda: (FREE_BYTES, 2 * FREE_BYTES),
            deviceSynchronize=lambda: None,
            deviceCanAccessPeer=lambda own, other: self.has_peer_access,
            # Ranks are threads of one process, so that a handle is an address.
            ipcGetMemHandle=lambda address: address.to_bytes(8, "little") * 8,
            ipcOpenMemHandle=lambda handle: int.from_bytes(handle[:8], "little"),
            ipcCloseMemHandle=lambda address: None,
        )
        self.cuda = SimpleNamespace(
            Device=self._device,
            Stream=self._stream,
            Event=FakeEvent,
            alloc_pinned_memory=bytearray,
            Memory=_Memory,
            UnownedMemory=lambda address, size, owner, device: SimpleNamespace(ptr=address),
            MemoryPointer=lambda memory, offset: memory.ptr + offset,
            get_elapsed_time=lambda start, end: (end.ns - start.ns) * 1e-6,
            get_current_stream=lambda: FakeStream(self, 0),
            memory=SimpleNamespace(OutOfMemoryError=type("OutOfMemoryError", (MemoryError,), {})),
            runtime=runtime,
            driver=SimpleNamespace(CUDADriverError=type("CUDADriverError", (RuntimeError,), {"status": 0})),
        )

    def __getattr__(self, name: str) -> Any:
        """Return NumPy's attribute, for everything that this fake lacks."""
        return getattr(np, name)

    def _device(self, index: int = 0) -> Any:
        attributes = {"MultiProcessorCount": 4, "MaxSharedMemoryPerBlockOptin": 227 << 10}
        facts = {"compute_capability": "90", "attributes": attributes}
        return SimpleNamespace(use=lambda: None, synchronize=lambda: self.on_wait(), **facts)

    def _stream(self, non_blocking: bool = True) -> FakeStream:
        self.streams += 1
        return FakeStream(self, STREAM + self.streams - 1)

    def capture(self, calls: list[Any] | None) -> None:
        """Keep launches in `calls` instead of running them; None: run them again."""
        self.captured.calls = calls

    @staticmethod
    def _copied(to: int, source: int, size: int, stream: int) -> int:
        ctypes.memmove(to, source, size)
        return 0

    # Arrays

    @staticmethod
    def asarray(values: Any) -> OnGpu:
        return np.array(values).view(OnGpu)

    @staticmethod
    def asnumpy(values: OnGpu) -> NDArray[Any]:
        return np.array(values)

    @staticmethod
    def empty(shape: Any, kind: Any = np.float64) -> OnGpu:
        return allocated(np.empty(shape, kind))

    @staticmethod
    def zeros(shape: Any, kind: Any = np.float64) -> OnGpu:
        return allocated(np.zeros(shape, kind))

    @staticmethod
    def ndarray(shape: tuple[int, ...], kind: Any, address: int) -> OnGpu:
        return memory_at(address, shape, kind).view(OnGpu)

    @staticmethod
    def get_default_memory_pool() -> Any:
        return SimpleNamespace(free_all_blocks=lambda: None)

    # Kernels

    def RawModule(self, code: str, options: tuple[str, ...] = ()) -> Any:  # noqa: N802
        """Return a module of fake kernels, by name. The launch of an unknown kernel fails."""

        def get_function(name: str) -> Any:
            if name in ("gather", "scatter"):
                return gather if name == "gather" else scatter
            if name in ("feedback", "end_step"):
                return self.kernels.raw(self._feedback(code))
            if name in ("ALL_REDUCE", "ALL_GATHER", "REDUCE_ADD"):
                return self.kernels.raw(partial(exchange, name=name))
            if name == "begin_loop":
                return self.kernels.raw(self._begin_loop)
            if name == "step_gemm":
                return self.kernels.raw(fake_quantised.step_gemm(fake_quantised.macros_of(options)))
            if name in (QUANTISED_GEMV, TENSOR_GEMV):
                return self.kernels.kernel(fake_quantised.gemv_quantised(fake_quantised.macros_of(options)))
            if name == "quantise_inputs":
                return self.kernels.kernel(fake_fp8.quantise_inputs(fake_quantised.macros_of(options)))
            is_indirect = "-DINDIRECT=1" in options
            if name == "next_operands":
                return self.kernels.raw(next_operands)
            if name in ("expert_route", "expert_fused"):
                fake = expert_route if name == "expert_route" else expert_fused
                return self.kernels.raw(fake(fake_quantised.macros_of(options)))
            if name in ("expert_gemm", "expert_align"):
                made = expert_gemm if name == "expert_gemm" else expert_align
                return self.kernels.raw(made(is_indirect))
            compute = self._compute(name)
            return self.kernels.kernel(through_table(compute) if is_indirect else compute)

        return SimpleNamespace(get_function=get_function)

    @staticmethod
    def _compute(name: str) -> Any:
        if name == "BIAS_RELU_SCALE":
            return bias_relu_scale
        if name in ELEMENTWISE:
            return elementwise(Op[name])
        if Op.__members__.get(name) in EXPERT_OPS:
            return experts(Op[name])

        def unknown(launched: Any) -> None:
            raise AssertionError(f"no stand-in for the kernel {name}")

        return unknown

    def _feedback(self, code: str) -> Any:
        """Return a fake of kernels/feedback.cu for the dtype and kind of sampling that `code` defines."""
        dtype = Dtype(int(re.findall(r"#define DTYPE (\d+)", code)[0]))
        samples = "#define KIND NONE\n" not in code
        in_loop = "#define WHILE" in code

        def read(config: Any, parameters: int) -> Callable[[], object]:
            words = words_at(int(words_at(parameters, 1)[0]), len(FIELDS)).tolist()
            feed = dict(zip(FIELDS, words, strict=True))
            row_words = memory_at(feed["arguments"], (ROW_WORDS, feed["pitch"]), np.uint64)[:, : config.grid_x]
            sampling = self.sampling if samples else NO_SAMPLING
            if in_loop:
                loop = words_at(int(words_at(parameters, 2)[1]), len(STEP_LOOP.names or ()))
                return lambda: self._end_step(feed, row_words, dtype, sampling, loop)
            self.fed_back += 1
            given = row_words.copy()  # the host writes other arguments to that memory later
            return lambda: fed_back(feed, given, dtype, sampling)

        return read

    def _end_step(
        self, feed: dict[str, int], row_words: NDArray[np.uint64], dtype: Dtype, sampling: Sampling, loop: Any
    ) -> None:
        """Do as end_step of kernels/step_loop.cu."""
        fed_back(feed, row_words.copy(), dtype, sampling)
        row_words[ROW_HISTORY] += np.where(row_words[ROW_HISTORY] != 0, np.uint64(feed["row_bytes"]), np.uint64(0))
        row_words[ROW_ID] += np.uint64(8)
        row_words[ROW_DRAW] += np.uint64(1)
        left = memory_at(int(loop[STEP_LOOP_WORDS["left"]]), (1,), np.uint64)
        left -= np.uint64(1)
        self.steps_left = int(left[0])

    def _begin_loop(self, config: Any, parameters: int) -> Callable[[], object]:
        """Do as begin_loop of kernels/step_loop.cu."""
        staged, steps, loop = words_at(parameters, 3).tolist()
        source, count = int(words_at(staged, 1)[0]), int(words_at(steps, 1)[0])
        fields = words_at(loop, len(STEP_LOOP_WORDS)).tolist()
        arguments, words, left = (int(fields[STEP_LOOP_WORDS[name]]) for name in ("arguments", "words", "left"))
        return lambda: (ctypes.memmove(arguments, source, 8 * words), memory_at(left, (1,), np.uint64).fill(count))
