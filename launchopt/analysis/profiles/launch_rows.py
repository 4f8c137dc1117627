"""Rows of `python -m runner.trace --output`: a kernel and the launch call that started it.

In: a `Trace` and its `Pairs`. Out: a table of `LAUNCH_KERNELS`. Times are ns since the trace's first call.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from launchopt.analysis.profiles.gpu_event_owners import Ints
from launchopt.analysis.profiles.launch_pairs import Pairs
from launchopt.recording.columns import schema
from launchopt.traces.events import EXTERNAL, LATEST_NS, NONE, Kind, Trace

_TEXT = pa.dictionary(pa.int32(), pa.string())  # names of kernels are long and repeat often
_I64 = pa.int64()

LAUNCH_KERNELS = schema(
    ("file", _TEXT, "the trace, as it was named on the command line"),
    ("call", _I64, "the launch call: position among the trace's calls of the CUDA API by start, 0-based"),
    ("kernel_in_call", _I64, "position among the kernels of that call by start, 0-based; above 0 in a CUDA graph"),
    (
        "correlation",
        _I64,
        "the profiler's correlation id, or External id: the same for a call and the activities that it started",
    ),
    ("process", _TEXT, "process of the call"),
    ("thread", _TEXT, "thread of the call"),
    ("api", _TEXT, "the call's name, without a version: cudaLaunchKernel, cuLaunchKernelEx, cudaGraphLaunch, ..."),
    ("call_start_ns", _I64, "entry to the call"),
    ("call_end_ns", _I64, "return of the call"),
    ("kernel", _TEXT, "the kernel's name"),
    ("is_graph", pa.bool_(), "true: a whole CUDA graph, whose kernels the profiler did not record"),
    ("device", _I64, "the profiler's number of the GPU; -1 if it gives none"),
    ("context", _I64, "the profiler's number of the CUDA context; -1 if it gives none"),
    ("stream", _I64, "the profiler's number of the stream; -1 if it gives none"),
    ("kernel_start_ns", _I64, "start of the kernel on the GPU"),
    ("kernel_end_ns", _I64, "end of the kernel on the GPU"),
    ("launch_delay_ns", _I64, "from the call's return to the kernel's start; 0 if the kernel started earlier"),
    (
        "start_to_start_ns",
        _I64,
        "from the call's start to the kernel's start; below 0 if the trace has the kernel first",
    ),
)


def launch_rows(file: str, trace: Trace, pairs: Pairs) -> pa.Table:
    """Return the table, by the kernel's start. It is empty if no launch call started anything."""
    rows = pairs.of_kernels
    call_of = pairs.call_of[rows]
    gpu, call = pairs.gpu[rows], pairs.calls[call_of]
    zero_ns = pairs.calls["start_ns"].min(initial=LATEST_NS)
    columns = {
        "file": _texts((file,), np.zeros(len(rows), np.int32)),
        "call": call_of,
        "kernel_in_call": _places(call_of),
        "correlation": np.where(call["correlation"] > EXTERNAL, call["correlation"] - EXTERNAL, call["correlation"]),
        **{name: _texts(trace.names, call[name]) for name in ("process", "thread")},
        "api": _texts(trace.names, call["name"]),
        "call_start_ns": call["start_ns"] - zero_ns,
        "call_end_ns": call["end_ns"] - zero_ns,
        "kernel": _texts(trace.names, gpu["name"]),
        "is_graph": gpu["kind"] == Kind.GRAPH,
        "device": gpu["device"],
        "context": gpu["context"],
        "stream": np.maximum(gpu["stream"], NONE),
        "kernel_start_ns": gpu["start_ns"] - zero_ns,
        "kernel_end_ns": gpu["end_ns"] - zero_ns,
        "launch_delay_ns": np.maximum(gpu["start_ns"] - call["end_ns"], 0),
        "start_to_start_ns": gpu["start_ns"] - call["start_ns"],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in LAUNCH_KERNELS]
    return pa.Table.from_arrays(arrays, schema=LAUNCH_KERNELS)


def _texts(names: tuple[str, ...], codes: Ints) -> pa.DictionaryArray:
    """Return the texts of codes; null if a code is NONE."""
    known = pa.array(codes, pa.int32(), mask=np.asarray(codes < 0))
    return pa.DictionaryArray.from_arrays(known, pa.array(names, pa.string()))


def _places(call_of: Ints) -> Ints:
    """Return for each row the number of earlier rows with the same call."""
    order = np.argsort(call_of, kind="stable")
    _, first, count = np.unique(call_of[order], return_index=True, return_counts=True)
    places = np.empty(len(call_of), dtype=np.int64)
    places[order] = np.arange(len(call_of)) - np.repeat(first, count)
    return places
