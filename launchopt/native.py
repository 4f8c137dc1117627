"""Primitives for compiled loops that Numba lacks: atomics, a pause, a clock, stores and calls by address.

`@compiled` functions call the intrinsics of this module. Atomics work on arrays of 8-byte words in shared memory, with
the memory order of C++: a thread that reads a value by `load_acquire` also sees everything that was written before the
`store_release` of that value. This holds on x86 and on Arm. Addresses are passed as int64, since a compiled function
that captures a ctypes object cannot be cached on disk.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, TypeVar, cast

from llvmlite import ir
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from launchopt.caches import compiled_folder
from launchopt.compiled_files import CompiledFiles

Function = TypeVar("Function", bound=Callable[..., Any])
CLOCK_MONOTONIC = 1  # from <bits/time.h>; time.monotonic_ns() reads this clock on Linux
_I32, _I64 = ir.IntType(32), ir.IntType(64)
# LLVM intrinsic and operands of the pause instruction, by machine; hint 1 of Arm is YIELD.
_PAUSE = {"x86_64": ("llvm.x86.sse2.pause", []), "aarch64": ("llvm.aarch64.hint", [1])}

# llvmlite and Numba have no type annotations.
TypingContext = Any  # Numba's typing context; no intrinsic here uses it
NumbaType = Any  # the Numba type of an argument
TypedCode = Any  # (signature, code generator) of an intrinsic; None: it does not accept arguments of these types
Context = Any  # Numba's target context
Builder = Any  # llvmlite's IRBuilder
Signature = Any  # a Numba signature
LlvmValues = Any  # LLVM values of the arguments of a call
LlvmValue = Any  # one LLVM value


def compiled(function: Function) -> Function:
    """Compile a function that runs without the GIL. A process that finds it in the disk cache loads it in 2 ms.

    Numba's runtime is off. Compiled functions therefore cannot allocate, and Numba does not count references to arrays.
    Counting would take two atomic operations per argument and call, more time than it takes to copy a record.
    """
    dispatcher = njit(nogil=True, boundscheck=False, _nrt=False)(function)
    before, config.CACHE_DIR = config.CACHE_DIR, compiled_folder()
    try:
        if config.CACHE_DIR is not None:
            dispatcher._cache = CompiledFiles(function)
    except RuntimeError:  # Numba finds no folder that it can write to: the function is compiled in each process
        pass
    finally:
        config.CACHE_DIR = before
    return cast(Function, dispatcher)


def _element(context: Context, builder: Builder, signature: Signature, args: LlvmValues) -> LlvmValue:
    """Return a pointer to array[index]. The array and the index are the first two arguments of the call."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    given, kinds = [args[1]], [signature.args[1]]
    if isinstance(signature.args[1], types.BaseTuple):
        given, kinds = cgutils.unpack_tuple(builder, args[1]), list(signature.args[1])
    indices = [context.cast(builder, value, kind, types.intp) for value, kind in zip(given, kinds, strict=True)]
    return cgutils.get_item_pointer(
        context, builder, signature.args[0], array, indices, wraparound=False, boundscheck=False
    )


@intrinsic
def load_acquire(typing_context: TypingContext, array: NumbaType, index: NumbaType) -> TypedCode:
    """Return array[index]; later loads and stores happen after this load. index: an integer, or a tuple of integers."""

    def generate(context: Context, builder: Builder, signature: Signature, args: LlvmValues) -> LlvmValue:
        return builder.load_atomic(_element(context, builder, signature, args), "acquire", 8, typ=_I64)

    return array.dtype(array, index), generate


@intrinsic
def store_release(typing_context: TypingContext, array: NumbaType, index: NumbaType, value: NumbaType) -> TypedCode:
    """Store `value` in array[index]; earlier loads and stores happen before this store."""

    def generate(context: Context, builder: Builder, signature: Signature, args: LlvmValues) -> LlvmValue:
        pointer = _element(context, builder, signature, args)
        word = context.cast(builder, args[2], signature.args[2], signature.args[0].dtype)
        builder.store_atomic(word, pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(array, index, value), generate


@intrinsic
def store_fence(typing_context: TypingContext) -> TypedCode:
    """Make all earlier stores, also those to write-combined memory, visible before any later store."""

    def generate(context: Context, builder: Builder, signature: Signature, args: LlvmValues) -> LlvmValue:
        if platform.machine() == "x86_64":  # sfence also flushes the buffers of write-combined memory
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse.sfence"), [])
        else:
            builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def cpu_pause(typing_context: TypingContext) -> TypedCode:
    """Tell the core that this is a spin loop."""

    def generate(context: Context, builder: Builder, signature: Signature, args: LlvmValues) -> LlvmValue:
        if platform.machine() in _PAUSE:
            name, operands = _PAUSE[platform.machine()]
            kind = ir.FunctionType(ir.VoidType(), [_I32 for _ in operands])
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            builder.call(function, [_I32(operand) for operand in operands])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def monotonic_ns(typing_context: TypingContext) -> TypedCode:
    """Return CLOCK_MONOTONIC in ns, as time.monotonic_ns() does. A call takes 25 ns, through the vDSO."""

    def generate(context: Context, builder: Builder, signature: Signature, args: LlvmValues) -> LlvmValue:
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
def call_matmul(typing_context: TypingContext, address: NumbaType, arguments: NumbaType) -> TypedCode:
    """Call `cublasLtMatmul` at `address` with its 16 arguments, each an int64; return its status.

    The arguments are, in the order of cuBLASLt's reference: handle, description, alpha, A and its layout, B and its
    layout, beta, C and its layout, D and its layout, algorithm, workspace, workspace bytes, CUDA stream. The calling
    conventions of x86-64 and AArch64 pass pointers, size_t and int64 alike.
    """

    def generate(context: Context, builder: Builder, signature: Signature, args: LlvmValues) -> LlvmValue:
        kind = ir.FunctionType(_I32, [_I64] * 16)
        function = builder.inttoptr(args[0], kind.as_pointer())
        words = cgutils.unpack_tuple(builder, args[1])
        return builder.call(function, words)

    if not isinstance(arguments, types.UniTuple) or arguments.count != 16:
        return None
    return types.int32(types.int64, types.UniTuple(types.int64, 16)), generate


@intrinsic
def load_word(typing_context: TypingContext, address: NumbaType) -> TypedCode:
    """Return the int64 at `address`, which another core or a GPU may write; later loads happen after this load."""

    def generate(context: Context, builder: Builder, signature: Signature, args: LlvmValues) -> LlvmValue:
        return builder.load_atomic(builder.inttoptr(args[0], _I64.as_pointer()), "acquire", 8, typ=_I64)

    return types.int64(types.int64), generate


@intrinsic
def store_word(typing_context: TypingContext, address: NumbaType, value: NumbaType) -> TypedCode:
    """Write the int64 `value` to `address`."""

    def generate(context: Context, builder: Builder, signature: Signature, args: LlvmValues) -> LlvmValue:
        pointer = builder.inttoptr(args[0], _I64.as_pointer())
        builder.store(context.cast(builder, args[1], signature.args[1], types.int64), pointer)
        return context.get_dummy_value()

    return types.void(types.int64, value), generate


@intrinsic
def call_words(typing_context: TypingContext, address: NumbaType, arguments: NumbaType) -> TypedCode:
    """Call the C function at `address` with a tuple of int64 arguments (pointers, size_t, int64); return its int."""

    def generate(context: Context, builder: Builder, signature: Signature, args: LlvmValues) -> LlvmValue:
        words = cgutils.unpack_tuple(builder, args[1])
        kind = ir.FunctionType(_I32, [_I64] * len(words))
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), words)

    if not isinstance(arguments, types.UniTuple):
        return None
    return types.int32(types.int64, types.UniTuple(types.int64, arguments.count)), generate


@compiled
def _now_ns() -> int:
    now_ns: int = monotonic_ns()
    return now_ns


def load_numba() -> None:
    """Load what Numba needs before its first call of a compiled function, which takes 0.15 s of CPU time."""
    _now_ns()
