"""What compiled loops need and Numba does not give: atomics, a pause, a clock, stores and calls by address.

Everything here is called from inside `@compiled` functions. Atomics work on uint64 arrays in shared memory and
order as C++'s do: a release store makes what was written before it visible to whoever acquires the stored
value, on x86 and on Arm. Addresses travel as int64, since a ctypes object captured by a compiled function
would defeat the on-disk cache.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from llvmlite import ir
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])
CLOCK_MONOTONIC = 1  # <bits/time.h>; the clock behind time.monotonic_ns() on Linux
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_PAUSE = {"x86_64": ("llvm.x86.sse2.pause", []), "aarch64": ("llvm.aarch64.hint", [1])}  # hint 1 is YIELD


@cache
def _cache_folder() -> str:
    """Return the folder for machine code: one for each state of the sources of compiled code and of its constants.

    Numba's own index looks at a function's own file alone. It would reuse machine code into which an older version of
    another file's function was inlined.
    """
    own = Path(__file__).parent
    state = hashlib.sha256()
    for folder in (own, own.parent / "runner"):
        for source in sorted(folder.rglob("*.py")):
            text = source.read_bytes()
            if any(word in text for word in (b"@compiled", b"@intrinsic", b"IntEnum", b"NamedTuple")):
                state.update(source.as_posix().encode() + text)
    root = os.environ.get("NUMBA_CACHE_DIR") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return str(Path(root) / "launchopt" / state.hexdigest()[:16])


def compiled(function: Function) -> Function:
    """Compile without the GIL; the machine code is cached on disk, so that a process pays 2 ms a function.

    Without Numba's runtime nothing can be allocated, which nothing here does, and references to arrays are not counted:
    two atomic operations an argument and call, which cost more than moving a record does.
    """
    before, config.CACHE_DIR = config.CACHE_DIR, _cache_folder()
    try:
        return cast(Function, njit(nogil=True, cache=True, boundscheck=False, _nrt=False)(function))
    finally:
        config.CACHE_DIR = before


def _element(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, args[0])
    given, kinds = [args[1]], [signature.args[1]]
    if isinstance(signature.args[1], types.BaseTuple):
        given, kinds = cgutils.unpack_tuple(builder, args[1]), list(signature.args[1])
    indices = [context.cast(builder, value, kind, types.intp) for value, kind in zip(given, kinds, strict=True)]
    return cgutils.get_item_pointer(
        context, builder, signature.args[0], array, indices, wraparound=False, boundscheck=False
    )


@intrinsic
def load_acquire(typing_context: Any, array: Any, index: Any) -> Any:
    """array[index], ordered before everything that follows. `index`: an integer, or a tuple of them."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_element(context, builder, signature, args), "acquire", 8, typ=_I64)

    return array.dtype(array, index), generate


@intrinsic
def store_release(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """array[index] = value, ordered after everything before it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _element(context, builder, signature, args)
        word = context.cast(builder, args[2], signature.args[2], signature.args[0].dtype)
        builder.store_atomic(word, pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(array, index, value), generate


@intrinsic
def store_fence(typing_context: Any) -> Any:
    """What was stored before is on its way, in memory of any kind, before anything that is stored after."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if platform.machine() == "x86_64":  # where stores that are combined wait for company otherwise
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse.sfence"), [])
        else:
            builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def cpu_pause(typing_context: Any) -> Any:
    """Tell the core that this is a spin loop."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if platform.machine() in _PAUSE:
            name, operands = _PAUSE[platform.machine()]
            kind = ir.FunctionType(ir.VoidType(), [_I32 for _ in operands])
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            builder.call(function, [_I32(operand) for operand in operands])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def monotonic_ns(typing_context: Any) -> Any:
    """time.monotonic_ns(), from compiled code (25 ns, through the vDSO)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        timespec = cgutils.alloca_once(builder, ir.ArrayType(_I64, 2))
        kind = ir.FunctionType(_I32, [_I32, timespec.type])
        function = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        builder.call(function, [_I32(CLOCK_MONOTONIC), timespec])
        seconds, nanoseconds = (
            builder.load(builder.gep(timespec, [_I32(0), _I32(i)], source_etype=ir.ArrayType(_I64, 2)), typ=_I64)
            for i in (0, 1)
        )
        return builder.add(builder.mul(seconds, _I64(1_000_000_000)), nanoseconds)

    return types.int64(), generate


@intrinsic
def call_matmul(typing_context: Any, address: Any, arguments: Any) -> Any:
    """Call `cublasLtMatmul` at `address` with its 16 arguments, each an int64; returns its status.

    The signature is that of cuBLASLt's reference: handle, description, alpha, A and its layout, B and its
    layout, beta, C and its layout, D and its layout, algorithm, workspace, workspace bytes, stream. Pointers,
    size_t and int64 are passed alike by the x86-64 and AArch64 conventions.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I32, [_I64] * 16)
        function = builder.inttoptr(args[0], kind.as_pointer())
        words = cgutils.unpack_tuple(builder, args[1])
        return builder.call(function, words)

    if not isinstance(arguments, types.UniTuple) or arguments.count != 16:
        return None
    return types.int32(types.int64, types.UniTuple(types.int64, 16)), generate


@intrinsic
def load_word(typing_context: Any, address: Any) -> Any:
    """The int64 at `address`, which another processor or a GPU may write: read anew, before all that follows."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], _I64.as_pointer()), "acquire", 8, typ=_I64)

    return types.int64(types.int64), generate


@intrinsic
def store_word(typing_context: Any, address: Any, value: Any) -> Any:
    """Write the int64 `value` to `address`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _I64.as_pointer())
        builder.store(context.cast(builder, args[1], signature.args[1], types.int64), pointer)
        return context.get_dummy_value()

    return types.void(types.int64, value), generate


@intrinsic
def call_words(typing_context: Any, address: Any, arguments: Any) -> Any:
    """Call the C function at `address` with a tuple of int64 arguments (pointers, size_t, int64); returns its int."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = cgutils.unpack_tuple(builder, args[1])
        kind = ir.FunctionType(_I32, [_I64] * len(words))
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), words)

    if not isinstance(arguments, types.UniTuple):
        return None
    return types.int32(types.int64, types.UniTuple(types.int64, arguments.count)), generate
