"""The columns of every table that a run leaves: their documentation.

In: nothing. Out: a Parquet schema a table, for `results` to write and read. A column's name ends in its unit, its
`doc` says what it is. Null means "not measured" or "there is none", never zero.
"""

from __future__ import annotations

import pyarrow as pa


def schema(*columns: tuple[str, pa.DataType, str]) -> pa.Schema:
    """A Parquet schema of (name, type, doc) columns."""
    return pa.schema([pa.field(name, kind, metadata={"doc": doc}) for name, kind, doc in columns])


_TEXT, _I32, _I64, _F64, _BOOL = pa.string(), pa.int32(), pa.int64(), pa.float64(), pa.bool_()
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9}


def _distribution(name: str, unit: str, doc: str) -> list[tuple[str, pa.DataType, str]]:
    """Columns NAME_p50_UNIT, ..., NAME_max_UNIT."""
    first, *rest = PERCENTILES
    columns = [(f"{name}_{first}_{unit}", _F64, f"{doc}; from a log-bucketed histogram, within 0.3%")]
    columns += [(f"{name}_{percentile}_{unit}", _F64, "the same") for percentile in rest]
    return [*columns, (f"{name}_max_{unit}", _F64, "the largest, exact")]


SUMMARY = schema(
    ("run_id", _TEXT, "the last two parts of the run's folder; with mode and repeat, the key of a row"),
    ("repeat", _I32, "0-based"),
    ("workload", _TEXT, "an option of the group: gemv_micro, decode, layer, ..."),
    ("model", _TEXT, "whose shapes; of a trace its name; null for a workload that has its own"),
    ("mode", _TEXT, "execution strategy"),
    (
        "ordering",
        _TEXT,
        "per_request: each request's commands ran in order; none: dependencies ignored; violated: on purpose",
    ),
    ("device", _TEXT, "cpu or cuda"),
    ("gpu", _TEXT, "name of the GPU; null on the cpu device"),
    ("dtype", _TEXT, "fp32, fp16, bf16; accumulation is always fp32"),
    ("shapes", _TEXT, "m x n x k of each shape, or how many there are"),
    ("layers", _I32, "transformer layers in the stream; null for a workload without layers"),
    ("cache", _TEXT, "cold: inputs cycle over at least 4x the last-level cache; hot: they fit in half of it"),
    ("input_footprint_bytes", _I64, "bytes of the distinct inputs A and B that the stream cycles over"),
    ("arrival", _TEXT, "closed, constant, poisson, bursty or replay"),
    (
        "arrival_rate_per_s",
        _F64,
        "requests (gemv, trace: commands) that were due a second, on average; null in a closed loop",
    ),
    (
        "completed_rate_per_s",
        _F64,
        "requests finished a second in the second half of the time in which they arrive (without arrivals: in all)",
    ),
    ("overloaded", _BOOL, "the rate could not be held: see completed_rate_per_s; null in a closed loop"),
    ("requests", _I64, "requests in the stream; gemv: every command is one"),
    (
        "scheduler",
        _TEXT,
        "none: a request goes on when its token is done; none, steps ahead: the same for a step's last "
        "command, and modes that take whole steps get the others before; continuous: all go on in steps",
    ),
    ("sampling", _TEXT, "between tokens: none, greedy, top_k or top_p; null without tokens"),
    ("sampling_where", _TEXT, "cpu or gpu; null without sampling"),
    ("max_batch", _I32, "a bucket is flushed at this many commands"),
    ("timeout_us", _F64, "... or when its oldest command has been in it this long"),
    ("streams", _I32, "streams that the mode spread its launches over"),
    ("commands", _I64, "commands asked for, executed and counted"),
    (
        "launch_calls",
        _I64,
        "API calls that submitted commands, packing included; those that feed tokens back are in the times alone",
    ),
    ("kernels", _I64, "kernels that ran, counted by CUPTI; null when untraced"),
    ("kernels_dropped", _I64, "records that CUPTI lost; where any, nothing else is told; null when untraced"),
    ("launch_delay_p50_us", _F64, "end of a launch call to the start of its first kernel, clipped at 0, by CUPTI"),
    ("launch_delay_p99_us", _F64, "the same"),
    ("launch_delays_clipped", _I64, "calls whose first kernel had started before they returned"),
    ("batches", _I64, "flushes of a bucket"),
    ("batch_size_mean", _F64, "commands a batch"),
    ("wall_ms", _F64, "from the start barrier, after warm-up, to the last result"),
    (
        "gpu_span_ms",
        _F64,
        "between two events on the work's stream, before the first launch and after the last",
    ),
    ("gpu_busy_ms", _F64, "length of the union of kernel intervals, by CUPTI; null when untraced"),
    (
        "host_submit_ns_per_launch",
        _F64,
        "mean time inside a launch call, or to post a command to a resident kernel; a full queue included",
    ),
    ("host_submit_burst_ns", _F64, "median of the first launch calls, before the launch queue can fill"),
    ("commands_per_s", _F64, "commands / wall"),
    *_distribution("latency", "us", "enqueue to results on the device, over commands of the sampled launches"),
    ("latency_samples", _I64, "commands that the latencies rest on; 0 where none was timed"),
    *_distribution("queue_wait", "us", "enqueue to flush of the batch, over all commands"),
    *_distribution("batch_wait", "us", "eligible (its predecessor submitted) to flush of the batch, over all commands"),
    ("tokens", _I64, "tokens generated; null for a workload without tokens"),
    ("tokens_per_s", _F64, "tokens / wall"),
    ("token_hash", _TEXT, "of all sampled token ids, by request; equal where two runs generated the same text"),
    *_distribution("ttft", "ms", "arrival of a request to its first token, over requests"),
    *_distribution("tpot", "ms", "time per output token after the first: mean of a request, over requests"),
    ("sampling_ms", _F64, "time spent sampling: on the host (cpu) or, by events or its own clock, on the GPU (gpu)"),
    ("slo_ttft_ms", _F64, "the objective that goodput counts by; null where none was given"),
    ("slo_tpot_ms", _F64, "the same"),
    ("goodput_per_s", _F64, "requests a second that met every objective given; null without one"),
    ("producer_blocked_ms", _F64, "time the producer waited for room in the ring"),
    ("producer_late_p99_us", _F64, "how late the producer pushed what was due; null in a closed loop"),
    ("producer_late_max_us", _F64, "the same, at worst"),
    ("flush_full", _I64, "batches flushed because the bucket was full"),
    ("flush_deadline", _I64, "... because its oldest command had waited timeout_us"),
    ("flush_idle", _I64, "... because nothing had arrived for idle_us"),
    ("flush_stall", _I64, "... because all that was left waited for a command in a bucket"),
    ("flush_drain", _I64, "... because the stream had ended"),
    (
        "packed_bytes",
        _I64,
        "bytes copied to or from scratch so that a batch could be strided; in wall and span",
    ),
    ("padded_commands", _I64, "commands executed for nothing, to fill a batch up to a size that was captured"),
    ("graph_replays", _I64, "launches of a captured graph; null for a mode that captures none"),
    ("one_time_ms", _F64, "making the mode ready, before any clock starts: plans, compilation, capture and the like"),
    ("capture_ms", _F64, "of one_time_ms: capturing graphs; null for a mode that captures none"),
    ("instantiate_ms", _F64, "of one_time_ms: making captured graphs executable; null likewise"),
    ("upload_ms", _F64, "of one_time_ms: taking executable graphs to the device; null likewise"),
    ("update_ms", _F64, "changing parameters between replays, over the run: in wall_ms; null for a mode without"),
    ("sm_clock_mhz", _F64, "median of the SM clock that NVML gave during the run; null where it was not read"),
    ("sm_clock_min_mhz", _F64, "the lowest of those readings"),
    ("throttled", _BOOL, "a reading gave a reason for throttling other than idling or the clocks that were asked for"),
    ("throttle_reasons", _TEXT, "names of all such reasons; null where there was none, or none was read"),
    ("energy_mj_per_command", _F64, "NVML's energy counter over the run / commands; idle power included"),
    ("power_w", _F64, "NVML's energy counter over the run / the time between its two readings"),
    ("bytes_moved", _I64, "sum over commands of A, B and C in bytes; packing not included"),
    ("achieved_gb_per_s", _F64, "bytes_moved / gpu_span (cpu: / wall)"),
    ("achieved_tflops", _F64, "2 m n k summed / gpu_span (cpu: / wall)"),
    ("copy_gb_per_s", _F64, "measured here: device-to-device copy, read + written"),
    ("read_gb_per_s", _F64, "measured here: a kernel that only reads"),
    ("peak_tflops", _F64, "measured here: the largest square GEMM tried, same dtype"),
    ("above_ceiling", _TEXT, "null, or why a rate above the measured ceiling is possible"),
    ("traced", _BOOL, "a tracer was attached: times are not headline times"),
    ("interleaved", _BOOL, "repeats of this run's modes were taken in turn, in random order"),
    ("verified", _BOOL, "every command's output matched the float64 reference"),
    (
        "max_rel_error",
        _F64,
        "largest |out - reference| / rms of an output of that shape, sqrt(k) / 3; of requests that of the output"
        " closest to its bound, relative to its row's rms",
    ),
    ("tolerance", _F64, "the bound max_rel_error was held against"),
    ("status", _TEXT, "ok, or what went wrong"),
)

LAUNCHES = schema(
    ("run_id", _TEXT, "as in summary"),
    ("mode", _TEXT, "as in summary"),
    ("repeat", _I32, "as in summary"),
    ("launch", _I64, "0-based, in order of submission"),
    ("batch", _I64, "the flush it belongs to; of resident: that of the first command"),
    ("m", _I32, "rows of C; null where the call held several shapes"),
    ("n", _I32, "columns of C; null likewise"),
    ("k", _I32, "inner size; null likewise"),
    ("dtype", _TEXT, "as in summary"),
    ("batch_size", _I32, "commands this call submitted; of resident: that were posted, one by one, and timed together"),
    (
        "strategy",
        _TEXT,
        "what the call was: single, strided or packed (copied together first); pointers (an array of them), grouped"
        " (several shapes), coalesced (columns of one GEMM), graph (a replay), fused (several commands' kernels in"
        " one), kernel (one of our own), torch, triton, resident (posted: no call), megakernel (a whole step)",
    ),
    ("flush_reason", _TEXT, "full, deadline, idle, drain or stall"),
    ("flush_ns", _I64, "when the batcher gave the batch up, since the start barrier"),
    ("submit_start_ns", _I64, "launch call entered, since the start barrier"),
    ("submit_end_ns", _I64, "launch call returned, since the start barrier"),
    ("device_start_ns", _I64, "device reached its submission, since the start barrier; null where not timed"),
    ("device_end_ns", _I64, "results of its submission on the device, likewise; null where not timed"),
    ("packed_bytes", _I64, "bytes copied to or from scratch for this call"),
)

# One activity of the GPU or of the API a row, with timing=cupti. Times as in launches, by CUPTI's clock, tied to
# CLOCK_MONOTONIC to within `cupti_clock_error_ns` of the manifest.
KERNELS = schema(
    ("run_id", _TEXT, "as in summary"),
    ("mode", _TEXT, "as in summary"),
    ("repeat", _I32, "as in summary"),
    ("launch", _I64, "the launch call that started it: launches.launch; null where none of ours did"),
    ("batch", _I64, "the flush it belongs to; null likewise"),
    ("range", _TEXT, "name of the NVTX range of that launch: mode, shape, dtype; null likewise"),
    ("name", _TEXT, "the kernel's name; of copies and fills what they are"),
    ("kind", _TEXT, "kernel, memcpy or memset"),
    ("correlation", _I64, "CUPTI's correlation id, common to a call and what it started"),
    ("api", _TEXT, "the API call that started it: cuLaunchKernelEx, cudaGraphLaunch, ...; null if lost"),
    ("api_start_ns", _I64, "that call was entered, since the start barrier"),
    ("api_end_ns", _I64, "that call returned, since the start barrier"),
    ("start_ns", _I64, "it began on the GPU, since the start barrier"),
    ("end_ns", _I64, "it ended on the GPU, since the start barrier"),
    ("stream", _I64, "CUPTI's number of the stream"),
    ("graph", _I64, "CUPTI's number of the graph it was a node of; null where it was none"),
)

# In the order of execution; a command that never ran has no row.
COMMANDS = schema(
    ("run_id", _TEXT, "as in summary"),
    ("mode", _TEXT, "as in summary"),
    ("repeat", _I32, "as in summary"),
    ("seq", _I64, "position in the stream"),
    ("request", _I64, "whose step it is"),
    ("step", _I64, "position within the request"),
    ("m", _I32, "rows of C; null where its launch call held several shapes"),
    ("n", _I32, "columns of C; null likewise"),
    ("k", _I32, "inner size; null likewise"),
    ("launch", _I64, "the launch call that ran it: launches.launch"),
    ("enqueue_ns", _I64, "arrival, since the start barrier (open loop: when it was due)"),
    ("eligible_ns", _I64, "popped, and its predecessor submitted, since the start barrier"),
    ("flush_ns", _I64, "its batch was flushed, since the start barrier"),
    ("submit_start_ns", _I64, "its launch call was entered, since the start barrier"),
    ("device_start_ns", _I64, "device reached its launch, since the start barrier; null where not timed"),
    ("device_end_ns", _I64, "results on the device, since the start barrier; null where not timed"),
)

TOKENS = schema(
    ("run_id", _TEXT, "as in summary"),
    ("mode", _TEXT, "as in summary"),
    ("repeat", _I32, "as in summary"),
    ("request", _I64, "whose token it is"),
    ("token", _I64, "0-based; 0 ends the prompt where there is one"),
    ("arrival_ns", _I64, "when the request was due, since the start barrier"),
    ("issue_ns", _I64, "its first command was pushed, since the start barrier"),
    ("done_ns", _I64, "the producer knew of it, since the start barrier"),
    ("token_id", _I64, "what was sampled; null without sampling"),
)

# A row a bucket that is not empty; merge repeats by adding the counts of equal buckets.
HISTOGRAMS = schema(
    ("run_id", _TEXT, "as in summary"),
    ("mode", _TEXT, "as in summary"),
    ("repeat", _I32, "as in summary"),
    ("what", _TEXT, "latency, queue_wait, batch_wait, ttft, tpot (ns) or batch_size (commands a batch)"),
    ("low", _I64, "smallest value that falls into the bucket"),
    ("high", _I64, "largest value that falls into the bucket"),
    ("count", _I64, "values in it"),
)
