"""Time one launch of the attention of a decode step, which reads keys and values (kernels/step_attention.cu).

Launches take turns over several KV caches, so that none of a cache is in the L2 cache. They are captured in one graph,
so that launching takes no time.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from launchopt.command import Dtype
from launchopt.cupy_types import CudaGraph, CudaStream
from launchopt.devices.arenas import SeqState
from launchopt.devices.cuda import step_attention as kernel
from launchopt.devices.cuda.step_attention import Addresses, Parts
from launchopt.kernels import source
from launchopt.streams.chains.attention import Attention, AttentionShape
from launchopt.streams.model import NORM_EPSILON
from launchopt.types import Table

LAUNCHES = 24  # of a graph, at least
COLD_BYTES = 512 << 20  # bytes of all caches, at least: many times the L2 cache
DTYPE = Dtype.bf16


class AttentionTime:
    """The attention of a step of `requests` requests that have `tokens` tokens each, on the current GPU."""

    def __init__(self, shape: AttentionShape, requests: int, tokens: int) -> None:
        import cupy

        self._cupy: ModuleType = cupy
        attention = Attention.of(shape, requests)
        self.bytes = 2 * attention.kv_width * DTYPE.itemsize * tokens * requests
        caches = max(2, -(-COLD_BYTES // self.bytes))
        size = attention.pages_total * 2 * attention.page_tokens * attention.kv_width
        self._caches = [_random(cupy, size) for _ in range(caches)]
        self._rows = _random(cupy, requests * shape.qkv_width)
        self._out = cupy.empty(requests * shape.q_width, np.uint16)
        self._state = SeqState(cupy, attention, requests, seed=1)
        self._state.positions[...] = tokens - 1
        arrays = kernel.array_shapes(attention, requests)
        self._mixed = cupy.empty(arrays["sums"], np.float32)
        self._arrived = cupy.zeros(arrays["arrived"], np.uint32)
        warps, self._splits = kernel.warps_of(attention, DTYPE, requests), kernel.splits_of(attention, DTYPE, requests)
        defines = {"DTYPE": int(DTYPE), "NORM_EPSILON": f"{NORM_EPSILON}f"}
        defines |= kernel.defines_of(attention, DTYPE, Parts(), warps)
        options = ("-std=c++17", *(f"-D{name}={value}" for name, value in defines.items()))
        self._function = cupy.RawModule(code=source(kernel.NAME), options=options).get_function(kernel.NAME)
        words = self._words(attention)
        self._struct = words.view(np.dtype(f"V{words.nbytes}"))
        self._grid, self._block = (self._splits, attention.kv_heads, requests), (32 * warps,)
        self._stream: CudaStream = cupy.cuda.Stream(non_blocking=True)
        self._launches = caches * -(-LAUNCHES // caches)
        cupy.cuda.Device().synchronize()  # the stream does not wait for the arrays to be filled
        self._graph = self._captured()

    def _words(self, attention: Attention) -> Table:
        """Return struct StepAttention of a launch."""
        _, splits, width = kernel.sums_shape(attention, attention.requests)
        mixed = int(self._mixed.data.ptr)
        at = Addresses(
            int(self._state.positions.data.ptr),
            int(self._state.table.data.ptr),
            attention.requests,
            mixed=mixed,
            weights=mixed + splits * width * self._mixed.itemsize,
            arrived=int(self._arrived.data.ptr),
        )
        strides = [each.nbytes // attention.requests for each in (self._rows, self._out)]
        return kernel.words_of(
            attention, self._splits, kernel.least_tokens(attention, DTYPE), (strides[0], strides[1]), at
        )

    def _captured(self) -> CudaGraph:
        """Return a graph of all launches; it has run once."""
        first = np.int64(0)
        with self._stream:
            self._stream.begin_capture()
            for at in range(self._launches):
                cache = np.int64(self._caches[at % len(self._caches)].data.ptr)
                rows, out = np.int64(self._rows.data.ptr), np.int64(self._out.data.ptr)
                self._function(self._grid, self._block, (cache, rows, out, first, self._struct))
            graph = self._stream.end_capture()
            graph.launch(self._stream)
        self._stream.synchronize()
        return graph

    def reading_us(self) -> float:
        """Return the time in which the GPU reads the keys and values of a launch, at the rate of a large read."""
        from launchopt.devices.cuda.ceilings import measure_memory

        return self.bytes / measure_memory(self._stream).read_gb_per_s / 1e3

    def us(self) -> float:
        """Return the time of one launch. The graph runs once before, untimed."""
        self._graph.launch(self._stream)
        begin, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        begin.record(self._stream)
        self._graph.launch(self._stream)
        end.record(self._stream)
        end.synchronize()
        return float(1e3 * self._cupy.cuda.get_elapsed_time(begin, end) / self._launches)


def _random(cupy: ModuleType, size: int) -> Any:
    """Return `size` random values as bf16."""
    values = cupy.random.default_rng(1).standard_normal(size, np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)
