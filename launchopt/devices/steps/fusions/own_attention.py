"""Make stages of our own attention of decode steps (kernels/step_attention.cu): one launch for the rows qk to av.

If the rows begin with ROPE, the launch also rotates queries and keys, and writes the KV cache. Prompts, and shapes that
the kernel does not support, are declined.
"""

from __future__ import annotations

import cupy
import numpy as np

from launchopt.command import Op
from launchopt.devices.arenas import SeqState
from launchopt.devices.cublaslt.kernel_plans import Launch
from launchopt.devices.cublaslt.tables import Row
from launchopt.devices.cuda import step_attention as kernel
from launchopt.devices.cuda.step_attention import Addresses, Parts
from launchopt.devices.steps.stage_table import Argument, Fused, Place, Role
from launchopt.devices.steps.stages import LtSteps
from launchopt.recording.launch_rows import Strategy
from launchopt.streams.chains.attention import Attention


def attention(steps: LtSteps, place: Place) -> Fused | str:
    """Fuse QK, softmax and AV, and ROPE and KV_WRITE if the rows begin with them; or return why the kernel cannot."""
    device, shape = steps.device, steps.stream.attention
    rows, state = steps.stream.rows(place.kind)[place.first : place.stop], device.state_of_sequences
    if rows[0].n > 1:
        return "our attention kernel takes decode steps, and not prompts"
    if shape is None or state is None:
        return "our attention kernel needs the KV cache of a layer"
    if (why := kernel.refusal(shape)) is not None:
        return f"attention {why}"
    parts, dtype = Parts(rope=rows[0].op is Op.ROPE, pdl=place.pdl), steps.stream.dtype
    first, last = place.first, place.stop - 1
    of_first, of_last = (int(steps.indices(place.kind)[row]) for row in (first, last))
    strides = int(steps.tables.strides_bytes(of_first)[1]), int(steps.tables.strides_bytes(of_last)[2])
    gains = steps.weight_address(place, first) if parts.rope and shape.qk_norm else 0
    at = _addresses(steps, shape, state, gains)

    def make(size: int) -> Row:
        warps, splits = kernel.warps_of(shape, dtype, size), kernel.splits_of(shape, dtype, size)
        function = device.kernels.function(
            kernel.NAME, kernel.NAME, "", **kernel.defines_of(shape, dtype, parts, warps)
        )
        words = kernel.words_of(shape, splits, kernel.least_tokens(shape, dtype), strides, at)
        launch = Launch((splits, shape.kv_heads, size), (32 * warps, 1, 1), 0, words)
        return device.kernels.row(function, launch, place.pdl), b"step_attention %d" % warps

    arguments = (
        Argument(last - 2, Role.A),  # the cache
        Argument(first, Role.B),
        Argument(last, Role.C),
        Argument(first, Role.REQUEST),
    )
    plan = steps.planned((kernel.NAME, parts, strides, at), make)
    return Fused(first, place.stop, arguments, int(Strategy.fused), plan)


def _addresses(steps: LtSteps, shape: Attention, state: SeqState, gains: int) -> Addresses:
    """Return the addresses that a launch needs, and make its memory: angles of all positions, and sums of splits."""
    _, splits, width = kernel.sums_shape(shape, steps.most)
    arrays, memory = kernel.array_shapes(shape, steps.most), steps.device.kernels.memory
    sums, items = arrays["sums"], arrays["arrived"]
    turns = memory((kernel.NAME, "turns"), lambda: cupy.asarray(kernel.turns_of(shape)))
    mixed = memory((kernel.NAME, "sums", sums), lambda: cupy.empty(sums, np.float32))
    arrived = memory((kernel.NAME, "arrived", items), lambda: cupy.zeros(items, np.uint32))
    first_weight = int(mixed.data.ptr) + splits * width * mixed.itemsize
    return Addresses(
        int(state.positions.data.ptr),
        int(state.table.data.ptr),
        state.requests,
        int(turns.data.ptr),
        gains,
        int(mixed.data.ptr),
        first_weight,
        int(arrived.data.ptr),
    )
