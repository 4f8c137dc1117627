"""The parts of the reference results: which commands measure each, for how long at most, and what they need.

A part has one folder and one machine. Its commands are compared with one another, so a part is measured as a whole.
Runs that are compared with each other take `processes=3`: a difference between two runs is judged by the spread between
their processes. `{folder}` is the folder of the part, `{scratch}` a folder that is deleted after it, and `{trace}` the
recorded file that it needs.

Not here, since each needs a permission or a program that a run does not: kernels under Nsight Compute, the sanitizers,
and the two campaigns of kill_campaign.py and soak.py.
"""

from __future__ import annotations

from scripts.reference_advised import ADVISED_PARTS
from scripts.reference_goals import GOAL_PARTS, WATERFALL_PARTS
from scripts.reference_gpus import GPU_PARTS
from scripts.reference_many_gpus import MANY_PARTS
from scripts.reference_part import Part, run_words
from scripts.reference_weights import WEIGHT_PARTS

AZURE = "AzureLLMInferenceTrace_code.csv"
MOONCAKE = "mooncake_conversation_trace.jsonl"
BERT = "h100_bert_small.kineto.json.gz"
TRACES = {  # where to get the recorded files
    AZURE: "github.com/Azure/AzurePublicDataset, data",
    MOONCAKE: "github.com/kvcache-ai/Mooncake, FAST25-release/traces/conversation_trace.jsonl",
    BERT: "github.com/AMD-AGI/TraceLens, the trace of bert-small-uncased on an H100",
}
# Numbers behind names are seconds: about how long a part takes on an H200, two at a time, or on two cores.
STRATEGIES = {
    **{"gemv_micro": 215, "gemv_256": 180, "decode_1": 290, "decode_16": 165, "decode_64": 200},
    **{"prefill": 130, "layer": 350, "elementwise_chain": 60, "linear_epilogue": 160},
}
RESIDENT = ("gemv_256", "gemv_micro", "decode_1", "decode_16", "layer")
GPU_BENCHES = ("resident", "stream", "megakernel", "attention", "copies", "tracing", "modes", "dispatch", "pipeline")
PAIR_BENCHES = ("collectives",)  # of two GPUs
CPU_BENCHES = ("ring", "batcher", "recorder", "posting", "pipeline")
BENCH_PROCESSES = 3  # fewer allow no interval between two results
BENCH_SECONDS = {"resident": 90, "megakernel": 120, "modes": 210, "dispatch": 105, "pipeline": 370, "ring": 240}
TABLES = [(table, dtype) for table in ("gemv_micro", "decode", "prefill") for dtype in ("fp32", "fp16")]
TABLE_SECONDS = {"gemv_micro": 115, "decode": 35, "prefill": 12}
PROFILED = "workload=gemv_micro workload.commands=65536 batching.max_batch=512 batching.timeout_us=1000000"
OBJECTIVE = "slo.ttft_ms=1000 slo.tpot_ms=50"
README = "readme"  # the folder of the parts that the README's first table and picture show


def _run(
    folder: str,
    minutes: float,
    seconds: int,
    words: str,
    *,
    device: str = "cuda",
    report: str = "",
    is_traced: bool = False,
) -> Part:
    """Return a run or a sweep, and then, if `is_traced`, one traced repeat of it.

    report: options of the report that pages show of it, if it is not the usual one.
    """
    traced = [run_words(f"{words} timing=cupti repeats=1", "{folder}/traced", device)] if is_traced else []
    made = [f"python -m runner report {{folder}} {report}"] if report else []
    return Part(folder, device, minutes, (run_words(words, device=device), *traced, *made), seconds=seconds)


def _bench(folder: str, device: str, suite: str) -> Part:
    repeats = " --repeats 2" if suite == "pipeline" else ""  # each is a process or a sweep
    command = (
        f"python -m runner bench {suite} --processes {BENCH_PROCESSES}{repeats} --device {device} --output {{folder}}"
    )
    return Part(f"{folder}/{suite}", device, 9, (command,), seconds=BENCH_SECONDS.get(suite, 60))


def _replay(folder: str, minutes: float, seconds: int, trace: str, words: str) -> Part:
    command = run_words(f"arrival=replay arrival.path={{trace}} {words}")
    return Part(folder, "cuda", minutes, (command,), trace, seconds=seconds)


def _ahead(requests: int) -> Part:
    """Return one table of the megakernel without steps ahead and with them, which are two runs."""
    table = f"table=resident_decode_{requests} against=[] repeats=5 processes=3"
    commands = [
        run_words(f"{table} scheduler.ahead={value}", f"{{folder}}/{name}")
        for value, name in [("false", "without"), ("true", "with")]
    ]
    return Part(f"gpu/ahead/decode_{requests}", "cuda", 6, tuple(commands), seconds=30)


def _under_nsys(mode: str) -> Part:
    """Return a job without a tracer, under CUPTI and under nsys, and the comparison of the last two."""
    job = f"mode={mode} {PROFILED} against=[] processes=3"
    profile, profiled = "{scratch}/profile", f"{{folder}}/nsys_{mode}"
    return Part(
        f"gpu/profilers/{mode}",
        "cuda",
        10,
        (
            run_words(job, f"{{folder}}/plain_{mode}"),
            run_words(f"{job} timing=cupti", f"{{folder}}/cupti_{mode}"),
            f"env NSYS_OUT={profile} bash scripts/nsys_profile.sh {job} device=cuda hydra.run.dir={profiled}",
            f"python -m runner nsys_agree {profile}/profile.sqlite --run {{folder}}/cupti_{mode} "
            f"--output {profiled}/agree_{mode}.parquet",
        ),
        program="nsys",
        seconds=140 if mode == "baseline" else 60,
    )


def _under_torch(mode: str) -> Part:
    """Return a job of PyTorch without its profiler and under it."""
    job = f"mode={mode} {PROFILED} against=[] processes=3"
    commands = [run_words(f"{job} timing={timing}", f"{{folder}}/{timing}_{mode}") for timing in ("events", "torch")]
    return Part(f"gpu/profilers/{mode}", "cuda", 10, tuple(commands), seconds=110)


def _prefixes() -> Part:
    """Return requests whose prompts share 2,048 tokens, with a cache of prefixes and without one: two runs."""
    words = (
        "workload=layer model=llama_3_2_1b workload.layers=4 workload.dtype=bf16 workload.kv=paged workload.requests=16"
        " workload.prompt_tokens=2304 workload.shared_prefix=2048 workload.tokens=20 workload.cache=hot mode=engine"
        " mode.submit=graph against=[] scheduler=continuous timing=host record.launches=none repeats=5 processes=3"
    )
    commands = [run_words(f"{words} scheduler.prefixes={name}", f"{{folder}}/{name}") for name in ("none", "hash")]
    return Part("gpu/prefixes", "cuda", 5, tuple(commands), seconds=140)


README_PARTS = (
    _run(f"{README}/decode_1", 3, 170, "table=strategies_decode_1 repeats=5"),
    _run(
        f"{README}/qkv_1", 2, 25, "table=qkv_decode_1 model=llama_3_2_1b against=[baseline,coalesced,engine] repeats=5"
    ),
    _run(f"{README}/ahead_1", 2, 15, "table=resident_decode_1 against=[graph] repeats=5"),
    _run(
        f"{README}/decode_4",
        2,
        20,
        "table=strategies_decode_16 workload.requests=4 mode=graph against=[baseline,coalesced,engine] repeats=5",
    ),
    _run(f"{README}/decode_16", 3, 80, "table=strategies_decode_16 repeats=5"),
    _run(f"{README}/ahead_16", 2, 15, "table=resident_decode_16 against=[graph] repeats=5"),
    _run(f"{README}/decode_64", 3, 80, "table=strategies_decode_64 repeats=5"),
)
REPLAYS = (
    *(  # as much as an H200 holds
        _replay(
            f"gpu/azure_llama_3_8b/speed_10_{scheduler}",
            10,
            300,
            AZURE,
            f"experiment=azure_llama_3_8b scheduler={scheduler} arrival.requests=100 arrival.speed=10 processes=3",
        )
        for scheduler in ("none", "continuous")
    ),
    *(
        _replay(
            f"gpu/mooncake_llama_3_2_1b/{name}",
            10,
            240,
            MOONCAKE,
            "workload=decode model=llama_3_2_1b workload.dtype=bf16 mode=batched against=[baseline] "
            "scheduler=continuous timing=host batching.max_batch=64 batching.timeout_us=300 record.launches=none "
            f"{OBJECTIVE} repeats=1 processes=3 arrival.requests=40 arrival.speed={speed}",
        )
        for name, speed in (("overload", 10), ("held", 0.5))
    ),
    *(
        _replay(
            f"gpu/replay_qwen3_0_6b/{dtype}",
            5,
            120,
            AZURE,
            f"workload=decode model=qwen3_0_6b workload.dtype={dtype} mode=batched against=[baseline] repeats=5 "
            "arrival.requests=20 arrival.speed=50 record.launches=none",
        )
        for dtype in ("bf16", "fp32")
    ),
    Part(
        "gpu/trace_bert",
        "cuda",
        5,
        (
            run_words(
                "workload=trace workload.path={trace} mode=baseline repeats=5 "
                "against=[batched,pointer_array,graph,torch_eager]"
            ),
        ),
        BERT,
        seconds=140,
    ),
)
PARTS = (
    *README_PARTS,
    *GOAL_PARTS,
    *WATERFALL_PARTS,
    *ADVISED_PARTS,
    *GPU_PARTS,
    *MANY_PARTS,
    *WEIGHT_PARTS,
    *(
        _run(
            f"gpu/strategies/{name}",
            10,
            seconds,
            f"table=strategies_{name} repeats=5",
            report="--strategies",
            is_traced=True,
        )
        for name, seconds in STRATEGIES.items()
    ),
    *(
        _run(
            f"gpu/gpu_kernel_batcher/{table}_{dtype}",
            10,
            TABLE_SECONDS[table],
            f"table={table} workload.dtype={dtype} repeats=5",
        )
        for table, dtype in TABLES
    ),
    *(
        _run(
            f"gpu/decode_in_order/{dtype}_{n}",
            5,
            40 if n == 64 else 12,
            f"experiment=decode_in_order workload.requests={n} workload.dtype={dtype} repeats=5",
        )
        for dtype in ("fp32", "fp16")
        for n in (1, 4, 16, 64)
    ),
    *(_run(f"gpu/resident/{name}", 8, 20, f"table=resident_{name} repeats=5") for name in RESIDENT),
    *(  # a goal compares the two
        _run(f"gpu/resident/{name}", 10, 130, f"table=resident_{name} repeats=3 processes=3")
        for name in ("llama_1", "llama_16")
    ),
    _run(
        "gpu/resident/ten_million",
        5,
        10,
        "mode=persistent against=[] workload=gemv_256 workload.commands=10000000 workload.cache=hot repeats=1 "
        "timing=host",
    ),
    *(
        _run(f"gpu/qkv/{table}_{model}", 5, 20, f"table=qkv_{table} model={model} repeats=5", report="--strategies")
        for table in ("decode_1", "decode_16", "prefill")
        for model in ("folovllm", "qwen3_0_6b", "llama_3_2_1b", "llama_3_8b")
    ),
    *(
        _run(
            f"gpu/timeout_bucket/{rate}",
            10,
            seconds,
            f"experiment=timeout_bucket arrival.rate_per_s={rate} repeats=5",
            report="--frontier --slo-p99-us 300",
        )
        for rate, seconds in ((200_000, 150), (1_000_000, 90), (1_800_000, 80))
    ),
    *REPLAYS,
    _prefixes(),
    *(_ahead(requests) for requests in (1, 16)),
    *(_under_nsys(mode) for mode in ("baseline", "batched", "graph")),
    *(_under_torch(mode) for mode in ("torch_eager", "torch_graph")),
    Part(
        "gpu/calibration",
        "cuda",
        10,
        ("python -m runner doctor --device cuda --processes 8 --save {folder}/calibration.json",),
        seconds=90,
    ),
    *(_bench("gpu/bench", "cuda", suite) for suite in GPU_BENCHES),
    *(_bench("gpu/bench", "cuda", suite)._replace(gpus=2, seconds=90) for suite in PAIR_BENCHES),
    Part(
        "gpu/cpp_loop",
        "cuda",
        9,
        ("python -m scripts.cpp_loop.measure --output {folder}",),
        program="nvcc",
        seconds=40,
    ),
    *(_bench("cpu/bench", "cpu", suite) for suite in CPU_BENCHES),
    _run("cpu/quick", 2, 60, "experiment=quick", device="cpu"),
)
