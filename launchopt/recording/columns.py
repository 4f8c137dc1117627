"""The definition of a column, and the columns of all tables of a run but summary.parquet (`summary_columns`).

Each table has a Parquet schema, with which `results` writes and reads it. A column's name ends in its unit, and `doc`
describes it. Null means "not measured" or "does not exist", never zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

TEXT, INT32, INT64, FLOAT, BOOL = pa.string(), pa.int32(), pa.int64(), pa.float64(), pa.bool_()
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9}

Value = bool | int | float | str | None
Row = dict[str, Any]  # one value per column, of the column's type
Columns = dict[str, object]  # a table: one NumPy or Arrow array per column


class Column(NamedTuple):
    """One column of a table."""

    name: str  # ends in the unit
    type: pa.DataType
    doc: str
    is_required: bool = False  # True: every file has it. False: it is read as null from a file that lacks it
    formula: Callable[..., float] | None = None  # computes the value from `inputs`; None: the runner fills it in
    inputs: tuple[str, ...] = ()

    def of(self, row: Mapping[str, Value]) -> float | None:
        """Return the value of the formula; None if an input is null or a divisor is 0."""
        assert self.formula is not None
        values = [row.get(name) for name in self.inputs]
        try:
            return None if None in values else self.formula(*values)
        except ZeroDivisionError:
            return None


def column(name: str, kind: pa.DataType, doc: str, formula: Callable[..., float] | None = None, *inputs: str) -> Column:
    """Return a column that older files may lack. It is read as null from them."""
    return Column(name, kind, doc, False, formula, inputs)


def required(name: str, kind: pa.DataType, doc: str) -> Column:
    """Return a column that every version of the schema has. A file without it is not of this project."""
    return Column(name, kind, doc, True)


def schema(*columns: Column | tuple[str, pa.DataType, str]) -> pa.Schema:
    """Return a Parquet schema with the name, the type and the documentation of each column."""
    return pa.schema(
        [pa.field(name, kind, metadata={"doc": doc}) for name, kind, doc in (each[:3] for each in columns)]
    )


LAUNCH_COLUMNS = (
    required("run_id", TEXT, "as in summary"),
    required("mode", TEXT, "as in summary"),
    required("repeat", INT32, "as in summary"),
    column(
        "gpu", INT32, "whose launch it is, as in gpus.parquet; null: there was one GPU (older files: the first one)"
    ),
    required("launch", INT64, "0-based, in order of submission; each GPU counts its own"),
    required("batch", INT64, "number of its batch, of each GPU; resident: the batch of its first command"),
    required("m", INT32, "rows of C; null for a call with several shapes"),
    required("n", INT32, "columns of C; null where m is null"),
    required("k", INT32, "inner size; null where m is null"),
    column("op", TEXT, "gemm, norm, all_reduce, ...; null where m is null, and in older files"),
    required("dtype", TEXT, "as in summary"),
    required(
        "batch_size",
        INT32,
        "commands that the call submitted; resident: commands that were posted one by one and timed together",
    ),
    required(
        "strategy",
        TEXT,
        "what the call was: single, strided or packed (copied together first); pointers (an array of them), grouped"
        " (several shapes), coalesced (columns of one GEMM), graph (a replay), fused (several commands' kernels in"
        " one), kernel (one of our own), torch, triton, resident (posted: no call), megakernel (a whole step)",
    ),
    required("flush_reason", TEXT, "full, deadline, idle, drain or stall"),
    required("flush_ns", INT64, "when the batcher flushed the batch, since the start barrier"),
    required("submit_start_ns", INT64, "launch call entered, since the start barrier"),
    required("submit_end_ns", INT64, "launch call returned, since the start barrier"),
    required("device_start_ns", INT64, "device reached its submission, since the start barrier; null where not timed"),
    required(
        "device_end_ns", INT64, "results of its submission on the device, since the start barrier; null where not timed"
    ),
    required("packed_bytes", INT64, "bytes copied to or from scratch for this call"),
)
LAUNCHES = schema(*LAUNCH_COLUMNS)

# With timing=cupti: one row per activity of the GPU. Times are converted from CUPTI's clock to CLOCK_MONOTONIC, with an
# error of up to `cupti_clock_error_ns` of the manifest.
KERNEL_COLUMNS = (
    required("run_id", TEXT, "as in summary"),
    required("mode", TEXT, "as in summary"),
    required("repeat", INT32, "as in summary"),
    column("gpu", INT32, "where it ran, as in gpus.parquet; null: there was one GPU"),
    required("launch", INT64, "the launch call that started it: launches.launch; null if no launch call did"),
    required("batch", INT64, "number of its batch; null where launch is null"),
    required("range", TEXT, "name of that launch's NVTX range: mode, shape, dtype; null where launch is null"),
    required("name", TEXT, "the kernel's name; for a copy or a fill, its kind and number of bytes"),
    required("kind", TEXT, "kernel, memcpy or memset"),
    required(
        "correlation",
        INT64,
        "CUPTI's correlation id: the same for a call and the activities that it started; each GPU has its own",
    ),
    required(
        "api",
        TEXT,
        "the API call that started it: cuLaunchKernelEx, cudaGraphLaunch, ...; null if CUPTI lost the record",
    ),
    required("api_start_ns", INT64, "entry to that call, since the start barrier"),
    required("api_end_ns", INT64, "return of that call, since the start barrier"),
    required("start_ns", INT64, "start on the GPU, since the start barrier"),
    required("end_ns", INT64, "end on the GPU, since the start barrier"),
    required("stream", INT64, "CUPTI's number of the CUDA stream"),
    required("graph", INT64, "CUPTI's number of the CUDA graph that it is a node of; null outside graphs"),
)
KERNELS = schema(*KERNEL_COLUMNS)

# One row per command, in the order of execution. A command that never ran has no row.
COMMAND_COLUMNS = (
    required("run_id", TEXT, "as in summary"),
    required("mode", TEXT, "as in summary"),
    required("repeat", INT32, "as in summary"),
    required("seq", INT64, "position in the stream"),
    required("request", INT64, "the request that the command belongs to"),
    required("step", INT64, "position within the request"),
    required("m", INT32, "rows of C; null if its launch call had several shapes"),
    required("n", INT32, "columns of C; null where m is null"),
    required("k", INT32, "inner size; null where m is null"),
    required("launch", INT64, "the launch call that ran it: launches.launch"),
    required("enqueue_ns", INT64, "arrival, since the start barrier (open loop: when it was due)"),
    required(
        "eligible_ns", INT64, "when it was popped and the command before it was submitted, since the start barrier"
    ),
    required("flush_ns", INT64, "flush of its batch, since the start barrier"),
    required("submit_start_ns", INT64, "entry to its launch call, since the start barrier"),
    required("device_start_ns", INT64, "device reached its launch, since the start barrier; null where not timed"),
    required("device_end_ns", INT64, "results on the device, since the start barrier; null where not timed"),
)
COMMANDS = schema(*COMMAND_COLUMNS)

TOKEN_COLUMNS = (
    required("run_id", TEXT, "as in summary"),
    required("mode", TEXT, "as in summary"),
    required("repeat", INT32, "as in summary"),
    required("request", INT64, "the request of the token"),
    required("token", INT64, "0-based within the request; if there is a prompt, its last step computes token 0"),
    required("arrival_ns", INT64, "when the request was due, since the start barrier"),
    required("issue_ns", INT64, "push of its first command, since the start barrier"),
    required("done_ns", INT64, "when the producer was notified that it is complete, since the start barrier"),
    required("token_id", INT64, "the sampled id; null without sampling"),
)
TOKENS = schema(*TOKEN_COLUMNS)

# One row per bucket that is not empty. To merge repeats, add the counts of equal buckets.
HISTOGRAM_COLUMNS = (
    required("run_id", TEXT, "as in summary"),
    required("mode", TEXT, "as in summary"),
    required("repeat", INT32, "as in summary"),
    required("what", TEXT, "latency, queue_wait, batch_wait, ttft, tpot (ns) or batch_size (commands a batch)"),
    required("low", INT64, "smallest value that falls into the bucket"),
    required("high", INT64, "largest value that falls into the bucket"),
    required("count", INT64, "number of values in the bucket"),
)
HISTOGRAMS = schema(*HISTOGRAM_COLUMNS)

# With several GPUs: one row for each GPU of a repeat.
GPU_COLUMNS = (
    required("run_id", TEXT, "as in summary"),
    required("mode", TEXT, "as in summary"),
    required("repeat", INT32, "as in summary"),
    required("gpu", INT32, "number of the GPU, an entry of device.gpus; on the cpu device: the core of its consumer"),
    required("requests", INT64, "requests that were routed to it; independent commands: the commands"),
    required("commands", INT64, "commands that it executed"),
    required("launch_calls", INT64, "as in summary"),
    required("wall_ms", FLOAT, "from the start barrier to its last result"),
    required("commands_per_s", FLOAT, "commands / wall_ms"),
    required("latency_p50_us", FLOAT, "as in summary"),
    required("latency_p99_us", FLOAT, "as in summary"),
    required("queue_wait_p50_us", FLOAT, "as in summary"),
    required("queue_wait_p99_us", FLOAT, "as in summary"),
    column("all_reduce_us", FLOAT, "of this GPU; as in summary"),
    column("all_reduce_wait_us", FLOAT, "of this GPU; as in summary"),
    column("gpu_span_ms", FLOAT, "as in summary"),
    column("gpu_busy_ms", FLOAT, "of this GPU; as in summary"),
    column("kernels", INT64, "of this GPU; as in summary"),
    column("sm_clock_mhz", FLOAT, "of this GPU, up to its last result; as in summary"),
    column("sm_clock_min_mhz", FLOAT, "the lowest of those readings"),
    column("throttled", BOOL, "of this GPU; as in summary"),
    column("throttle_reasons", TEXT, "of this GPU; as in summary"),
    column("energy_mj_per_command", FLOAT, "energy of this GPU over the whole run / commands that it executed"),
    column("power_w", FLOAT, "of this GPU over the whole run; as in summary"),
)
GPUS = schema(*GPU_COLUMNS)


RENAMED = {"one_time_ms": "setup_ms"}  # names that older files have
RENAMED_VALUES = {"model": {"predecessor": "small_1024"}}  # by column: values that older files have


def current_values(name: str, values: pa.Array) -> pa.Array:
    """Return the values of the column `name` of a file, with today's names."""
    for old, new in RENAMED_VALUES.get(name, {}).items():
        values = pc.replace_substring_regex(values, f"^{old}$", new)
    return values
