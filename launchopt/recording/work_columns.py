"""The first columns of summary.parquet (`summary_columns`): what ran, on what, and how its requests arrived."""

from __future__ import annotations

from launchopt.recording.columns import BOOL, FLOAT, INT32, INT64, TEXT, column, required

WORK_COLUMNS = (
    required("run_id", TEXT, "the last two parts of the run's folder; with mode and repeat, the key of a row"),
    required("repeat", INT32, "0-based, counted over all processes of the run"),
    column("process", INT32, "0-based: the set of producer and consumer that ran it; null in old files: 0"),
    required("workload", TEXT, "an option of the group: gemv_micro, decode, layer, ..."),
    required("model", TEXT, "the model, or the name of the trace or list; null for a workload with its own shape"),
    required(
        "mode", TEXT, "execution strategy: a mode, and the choices in which its stack differs, as graph+norm+attention"
    ),
    column("stack", TEXT, "all choices: coalesce, fuse, submit, pdl, kernels (numpy: of a CPU); null in older files"),
    required(
        "ordering",
        TEXT,
        "per_request: each request's commands ran in order; none: dependencies ignored; violated: broken on purpose, to"
        " test the check",
    ),
    required("device", TEXT, "cpu or cuda"),
    required("gpu", TEXT, "name of the GPU; null on the cpu device"),
    required("dtype", TEXT, "fp32, fp16, bf16; accumulation is always fp32"),
    column(
        "weights",
        TEXT,
        "format of quantised weights and what shares a scale, as fp8 per channel; null: weights have dtype",
    ),
    column(
        "quantised_inputs",
        TEXT,
        "format and scales to which the mode quantises inputs while it is timed, as fp8 per channel: less accurate than"
        " other modes; null: inputs have dtype",
    ),
    required("shapes", TEXT, "m x n x k of each shape, or the number of shapes"),
    required("layers", INT32, "transformer layers in the stream; null for a workload without layers"),
    required("cache", TEXT, "cold: inputs cycle over at least 4x the last-level cache; hot: they fit in half of it"),
    required("input_footprint_bytes", INT64, "bytes of the distinct inputs A and B that the stream cycles over"),
    required("arrival", TEXT, "closed, constant, poisson, bursty or replay"),
    column(
        "arrival_rate_per_s",
        FLOAT,
        "mean rate at which requests (gemv, list, trace: commands) were due, per second; null in a closed loop",
    ),
    column(
        "completed_rate_per_s",
        FLOAT,
        "requests finished per second, from the middle of the arrivals to the last one's end (closed loop: whole run)",
    ),
    column(
        "overloaded",
        BOOL,
        "the rate could not be held: see completed_rate_per_s; null in a closed loop, and if no launch of independent"
        " commands was timed",
    ),
    column("independent", BOOL, "every command is a request, so that any order is right; null in older files"),
    required("requests", INT64, "requests in the stream; gemv: every command is one"),
    column(
        "scheduler",
        TEXT,
        "none: a request's next step is pushed when its token is complete; none, steps ahead: all commands of the next"
        " step but the last are pushed while a step runs; continuous: all running requests take each step together;"
        " continuous, prefixes hash or radix: cached beginnings of prompts have no steps",
    ),
    column(
        "prefix_hit_rate",
        FLOAT,
        "full blocks of prompts that the cache had / all; null without scheduler.prefixes, as the next three",
    ),
    column("cached_tokens", INT64, "tokens of prompts that were cached, so that they had no step"),
    column("prefix_evicted_blocks", INT64, "blocks that made room for others (scheduler.prefix_blocks)"),
    column(
        "prefix_host_ns_per_token",
        FLOAT,
        "time of the host to hash a prompt's tokens and to find its blocks / tokens; measured before the run, in no"
        " other time",
    ),
    column("sampling", TEXT, "between tokens: none, greedy, top_k or top_p; null without tokens"),
    column("sampling_where", TEXT, "cpu or gpu; null without sampling"),
    required("max_batch", INT32, "a bucket is flushed at this many commands"),
    required("timeout_us", FLOAT, "... or when its oldest command has waited in it this long"),
    column("gpus", INT32, "GPUs with a consumer each (device.gpus; cpu device: cores); null: one"),
    column("routing", TEXT, "with several GPUs, which one gets a request: round_robin, least_outstanding or prefix"),
    column("tensor", INT32, "GPUs that split each layer (parallel.tensor); null: each GPU has the whole model"),
    column("collectives", INT64, "all-reduces of one of the GPUs that split the model"),
    column("all_reduce_us", FLOAT, "mean time of an all-reduce on the slowest GPU, with the wait for the others"),
    column("all_reduce_wait_us", FLOAT, "part of it in which a GPU waited for the others, the skew; mean over GPUs"),
    column("gpu_imbalance", FLOAT, "with several GPUs: most commands of one / mean, less 1"),
    column(
        "producer_commands_per_s",
        FLOAT,
        "with several GPUs and independent commands: commands / time of routing them, waiting not included; null in an"
        " open loop",
    ),
    column(
        "expert_routing",
        TEXT,
        "how tokens get their experts: balanced, power_law EXPONENT or replay FILE; null without experts, as the"
        " columns on experts and steps",
    ),
    column("experts", INT32, "experts of a layer"),
    column("experts_per_token", INT32, "experts that a token uses"),
    column("steps", INT64, "steps through the layer, each with a routing of its own"),
    column("step_tokens", INT32, "tokens of a step"),
    column("active_experts", FLOAT, "experts with tokens in a step, mean over steps"),
    column("largest_expert_tokens", FLOAT, "tokens of the expert with most tokens in a step, mean over steps"),
    column("streams", INT32, "CUDA streams over which the mode spread its launches"),
)
