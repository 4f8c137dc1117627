"""The columns of summary.parquet, which has one row per repeat of a mode. The first ones are those of `work_columns`.

An entry has a name that ends in the unit, a type, and a line of documentation, which Parquet files and COLUMNS.md
contain. The runner fills the column by its name (runner/run/run.py), or a formula computes it from other columns:

    column("batch_size_mean", FLOAT, "commands a batch", lambda commands, batches: commands / batches,
           "commands", "batches")

A column that a file lacks is read as null. So a new column does not change the version of the schema.
"""

from __future__ import annotations

from collections.abc import Mapping

from launchopt.recording.columns import (
    BOOL,
    FLOAT,
    INT64,
    PERCENTILES,
    TEXT,
    Column,
    Value,
    column,
    required,
    schema,
)
from launchopt.recording.work_columns import WORK_COLUMNS

OLD = ("p50", "p99")  # percentiles that every version of the schema has


def _distribution(name: str, unit: str, doc: str, old: tuple[str, ...] = ()) -> list[Column]:
    """Return the columns NAME_p50_UNIT, ..., NAME_max_UNIT. old: percentiles that every file has."""
    docs = dict.fromkeys(PERCENTILES, "the same") | {
        next(iter(PERCENTILES)): f"{doc}; from a log-bucketed histogram, within 0.3%"
    }
    columns = [Column(f"{name}_{each}_{unit}", FLOAT, text, each in old) for each, text in docs.items()]
    return [*columns, column(f"{name}_max_{unit}", FLOAT, "the largest, exact")]


SUMMARY_COLUMNS = (
    *WORK_COLUMNS,
    required("commands", INT64, "commands asked for, executed and counted"),
    column("gemms", INT64, "commands that are GEMMs; the others are norms, attention, ...; null in older files"),
    required(
        "launch_calls",
        INT64,
        "API calls that submitted commands, packing included; feedback calls are not counted, but their time is",
    ),
    column(
        "launch_calls_per_step",
        FLOAT,
        "launch_calls / steps: those behind one token of each request",
        lambda calls, steps: calls / steps,
        *("launch_calls", "steps"),
    ),
    required("kernels", INT64, "kernels that ran, by CUPTI; of a split model: on one GPU; null when untraced"),
    column(
        "kernels_per_step",
        FLOAT,
        "kernels / steps: those behind one token of each request",
        lambda kernels, steps: kernels / steps,
        *("kernels", "steps"),
    ),
    column(
        "kernels_dropped",
        INT64,
        "records that CUPTI lost; if above 0, the other columns from CUPTI are null; null when untraced",
    ),
    column(
        "launch_delay_p50_us",
        FLOAT,
        "end of a launch call to the start of its first kernel, clipped at 0, by CUPTI; of several GPUs the largest",
    ),
    column("launch_delay_p99_us", FLOAT, "the same"),
    column("launch_delays_clipped", INT64, "calls whose first kernel had started before they returned"),
    required("batches", INT64, "flushes of a bucket"),
    Column(
        *("batch_size_mean", FLOAT, "commands a batch", True),
        lambda commands, batches: commands / batches,
        ("commands", "batches"),
    ),
    required("wall_ms", FLOAT, "from the start barrier, after warm-up, to the last result"),
    required(
        "gpu_span_ms",
        FLOAT,
        "between two events on the work's stream, before the first launch and after the last",
    ),
    column("step_wall_us", FLOAT, "wall / steps", lambda ms, steps: ms * 1e3 / steps, "wall_ms", "steps"),
    column("step_span_us", FLOAT, "gpu_span / steps", lambda ms, steps: ms * 1e3 / steps, "gpu_span_ms", "steps"),
    required("gpu_busy_ms", FLOAT, "length of the union of a GPU's kernel intervals, the largest; null when untraced"),
    required(
        "host_submit_ns_per_launch",
        FLOAT,
        "mean time inside a launch call, or to post a command to a resident kernel; a full queue included",
    ),
    column(
        "submits",
        INT64,
        "launches, and posts to a resident kernel; the mean above is their time / this number; null in older files",
    ),
    required("host_submit_burst_ns", FLOAT, "median of the first launch calls, before the launch queue can fill"),
    required("commands_per_s", FLOAT, "commands / wall"),
    *_distribution("latency", "us", "enqueue to results on the device, over commands of the sampled launches", OLD),
    required("latency_samples", INT64, "commands whose latency was measured"),
    *_distribution(
        *("queue_wait", "us"), "enqueue to the command's own launch call (up to version 0.1: to flush), over all", OLD
    ),
    *_distribution(
        "batch_wait",
        "us",
        "eligible (the commands that it depends on submitted) to flush of the batch, over all commands",
    ),
    column("tokens", INT64, "tokens generated; null for a workload without tokens"),
    column("tokens_per_s", FLOAT, "tokens / wall"),
    column(
        "token_hash", TEXT, "hash of all sampled token ids, by request; the same for runs that generated the same text"
    ),
    *_distribution("ttft", "ms", "arrival of a request to its first token, over requests"),
    *_distribution("tpot", "ms", "time per output token after the first: mean of a request, over requests"),
    column(
        "sampling_ms",
        FLOAT,
        "time spent sampling, on the host (cpu) or on the GPU (gpu; by events or the kernel's clock)",
    ),
    column("slo_ttft_ms", FLOAT, "objective for ttft, in goodput_per_s; null if none was given"),
    column("slo_tpot_ms", FLOAT, "objective for tpot, in goodput_per_s; null if none was given"),
    column("goodput_per_s", FLOAT, "requests per second that met every given objective; null without an objective"),
    column(
        "producer_cpu_ns_per_command",
        FLOAT,
        "CPU time of the producer / commands, with time in which it spins while it waits",
    ),
    required("producer_blocked_ms", FLOAT, "time that the producer waited for a free slot of the ring"),
    required(
        "producer_late_p99_us",
        FLOAT,
        "delay from a command's due time to its push, 99th percentile; null in a closed loop",
    ),
    column("producer_late_max_us", FLOAT, "the same, maximum"),
    required("flush_full", INT64, "batches flushed because the bucket was full"),
    required("flush_deadline", INT64, "... because its oldest command had waited timeout_us"),
    required("flush_idle", INT64, "... because nothing had arrived for idle_us"),
    column("flush_stall", INT64, "... because every remaining command depended on one in a bucket"),
    required("flush_drain", INT64, "... because the stream had ended"),
    required(
        "packed_bytes",
        INT64,
        "bytes copied to or from scratch so that a batch is strided; the time is in wall and span",
    ),
    column("padded_commands", INT64, "commands computed only to fill a batch up to a captured size"),
    column("graph_replays", INT64, "launches of a captured graph; null for a mode that captures none"),
    column("setup_ms", FLOAT, "setup of the mode, before any clock starts: plans, compilation, capture"),
    column(
        "tuning",
        TEXT,
        "all: of the algorithms that cuBLASLt proposes for one command and for a full batch, the fastest is taken, in"
        " every mode; none: cuBLASLt's first; null on the cpu device and in older files",
    ),
    column("tuning_ms", FLOAT, "of setup_ms: timing these algorithms; a GEMM that an earlier mode timed takes no time"),
    column("compile_ms", FLOAT, "of setup_ms: torch.compile of steps, or compiling our own kernels or loading them"),
    column("capture_ms", FLOAT, "of setup_ms: capturing graphs; null for a mode that captures none"),
    column("instantiate_ms", FLOAT, "of setup_ms: making captured graphs executable; null where capture_ms is null"),
    column("upload_ms", FLOAT, "of setup_ms: uploading executable graphs to the device; null where capture_ms is null"),
    column(
        "update_ms",
        FLOAT,
        "time to change graph parameters between replays, part of wall_ms; null for a mode that changes none",
    ),
    column("library", TEXT, "modes of PyTorch: its version and settings, and those of Triton; null for other modes"),
    column("sm_clock_mhz", FLOAT, "median of NVML's readings of the SM clock; of several GPUs the lowest median"),
    column("sm_clock_min_mhz", FLOAT, "the lowest of those readings, of all GPUs"),
    column("throttled", BOOL, "NVML gave a reason for throttling other than idleness or requested clocks; of any GPU"),
    column("throttle_reasons", TEXT, "names of all such reasons; null if there was none, or without readings"),
    column("energy_mj_per_command", FLOAT, "NVML's energy counters, sum over GPUs / commands; idle power included"),
    column("power_w", FLOAT, "NVML's energy counter over the run / the time between its readings; sum over GPUs"),
    required("bytes_moved", INT64, "sum over commands of A, B and C in bytes; packing not included"),
    column("weight_bytes", INT64, "of bytes_moved: weights, which requests can share; null in older files"),
    column(
        "least_memory_bytes",
        INT64,
        "lower bound of the weights that came from memory: a batch, or all requests, read a weight once, and a cache"
        " keeps all that it can hold; null in older files",
    ),
    required(
        "achieved_gb_per_s",
        FLOAT,
        "bytes_moved / gpu_span (cpu: / wall); a shared weight counts for each command, so it is no memory bandwidth",
    ),
    required("achieved_tflops", FLOAT, "2 m n k summed / gpu_span (cpu: / wall)"),
    required(
        "copy_gb_per_s",
        FLOAT,
        "measured by this run: device-to-device copy, bytes read + written; null where ceilings_change is above"
        " 0.05, or where the job shared its cores with other jobs",
    ),
    required("read_gb_per_s", FLOAT, "measured by this run: a kernel that only reads; null as above"),
    required(
        "peak_tflops",
        FLOAT,
        "measured by this run: the largest square GEMM tried, same dtype; null as above, and where quantised_inputs is"
        " not null",
    ),
    column(
        "ceilings_change",
        FLOAT,
        "largest over smallest copy or read bandwidth that was measured before the runs and after them, less 1; above"
        " 0.05 the ceilings are null, as the manifest alone has them; null: not measured again",
    ),
    required("above_ceiling", TEXT, "why a rate above the measured ceiling is possible; null if no rate is above it"),
    required("traced", BOOL, "a tracer was attached, which slows launches: compare only with other traced runs"),
    required("interleaved", BOOL, "repeats of this run's modes were taken in turn, in random order"),
    required("verified", BOOL, "operands were what the seed gives, and all checked outputs matched float64"),
    column(
        "checked_commands",
        INT64,
        "commands whose outputs were compared with float64: a random sample where verify_budget_s is too short for all;"
        " for requests, those whose inputs were still in memory",
    ),
    column(
        "compared_share",
        FLOAT,
        "share of all output elements that were compared with float64; for requests, share of the commands",
    ),
    column(
        "audited_share",
        FLOAT,
        "of all layers of all steps, the share whose outputs were compared with float64 in an untimed run of the same"
        " launches: the probability to find a fault in one layer of one step; null for independent commands",
    ),
    column(
        "as_audited_share",
        FLOAT,
        "share of the tokens of that untimed run that this repeat computed bit for bit the same: ids, or without"
        " sampling outputs of the last layer; below 1 where rounding depends on which commands arrive together",
    ),
    required(
        "max_rel_error",
        FLOAT,
        "|out - reference| / rms of the output closest to its bound; the rms is sqrt(k) / 3, as of random operands, and"
        " for requests that of the output's row",
    ),
    required("tolerance", FLOAT, "the bound of max_rel_error"),
    required("status", TEXT, "ok, or what went wrong"),
)

SUMMARY = schema(*SUMMARY_COLUMNS)
# A row without one of these is of no use: it says neither what ran, nor how long it took.
KNOWN = (
    *("run_id", "repeat", "workload", "mode", "ordering", "device", "dtype", "shapes", "cache", "arrival", "requests"),
    *("max_batch", "timeout_us", "commands", "launch_calls", "wall_ms", "traced", "interleaved"),
    *("status",),
)
DERIVED = tuple(each for each in SUMMARY_COLUMNS if each.formula)


def derived(row: Mapping[str, Value]) -> dict[str, Value]:
    """Return the columns that have formulas. A formula may use the columns of earlier entries."""
    values: dict[str, Value] = {}
    for each in DERIVED:
        values[each.name] = each.of({**row, **values})
    return values
