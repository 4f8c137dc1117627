"""What pages say about their tables without figures: of which GPU they are, what is the fastest, which goal is met.

In: files under outputs/reference, and the lines below generated tables. Out: names, numbers, and claims of pages.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from statistics import median

from launchopt.files import read_json
from launchopt.recording.results import read_summaries
from runner.bench import account, figures
from support import measured
from support.measured import REFERENCE
from support.measured_goals import split_factors
from support.paths import ROOT

Claim = tuple[str, str, Callable[[], bool]]

H200, CPU = "NVIDIA H200", "AMD EPYC, 2 cores"
REFUSED = "a setting that is refused, whole process"
ORDERS = ("fusions_first", "launches_first")
FASTER_STACK = "qwen3_0_6b_16/fusions_first"
FASTER_STACKS = "llama_3_2_1b_64", "qwen3_0_6b_4", "qwen3_0_6b_64"  # of both orders
FEW_CALLS = ("graph", "megakernel", "torch_compile", "torch_graph")
COMPLETE = "one command there and back, {}x1x{} fp32, {}, complete, p50"
COMPLETIONS = [(16, 64, "hot"), (64, 256, "hot"), (256, 256, "from memory"), (64, 8192, "from memory")]


def machines(page: str) -> set[str]:
    """The machines that the lines below the generated tables of a page name."""
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = re.findall(r"^Measured on .*$", text, flags=re.M)
    return {name for line in lines for name in re.findall(r"(?:Measured on |\. )([A-Z][\w ,]*?): \d{4}-", line)}


def waterfalls() -> dict[str, str]:
    """The fastest row of each table of the waterfalls, by model, requests and order."""
    found = {}
    for folder in sorted((REFERENCE / "waterfall").glob("*/*_first")):
        name = str(folder.relative_to(REFERENCE / "waterfall"))
        (stacks,) = read_json(folder / "manifest.json")["config"]["waterfall"]
        found[name] = min(stacks, key=lambda mode: measured.middle(f"waterfall/{name}", "wall_ms", mode))
    return found


def calls_of_16(*modes: str) -> tuple[int, int]:
    """The fewest and the most launch calls of modes in decode with 16 requests, each in its median."""
    calls = [int(measured.middle("gpu/strategies/decode_16", "launch_calls", mode)) for mode in modes]
    return min(calls), max(calls)


def gemv_us(gpu: str) -> list[float]:
    """Medians of `batched` in all closed loops with GEMVs of 64 x 8192 in fp32 on a kind of GPU, in us a command."""
    runs: dict[str, list[float]] = {}
    for row in read_summaries([REFERENCE]):
        is_gemv = row["shapes"] == "64x1x8192" and row["dtype"] == "fp32" and row["arrival"] == "closed"
        if is_gemv and row["gpu"] == gpu and row["mode"] == "batched" and not row["traced"]:
            runs.setdefault(row["run_id"], []).append(row["wall_ms"] / row["commands"] * 1e3)
    return [median(each) for each in runs.values()]


def ranked(run: str) -> list[str]:
    """The modes of a run of `experiment=strategies`, the fastest first."""
    walls = {
        mode: median(row["wall_ms"] for row in rows)
        for (_, mode), rows in measured.arms(f"gpu/strategies/{run}").items()
    }
    return sorted(walls, key=walls.__getitem__)


def loops_are_behind() -> bool:
    """Whether both loops of steps are slower than `graph` in all runs that have them."""
    runs = [ranked(folder.name) for folder in (REFERENCE / "gpu/strategies").iterdir() if folder.is_dir()]
    having = [modes for modes in runs if "graph_loop" in modes]
    return bool(having) and all(
        modes.index("graph") < modes.index(f"graph_{how}") for modes in having for how in ("loop", "device")
    )


def completions_us() -> list[float]:
    """The times until commands are complete, the smallest command first."""
    return measured.bench(
        "gpu/bench/resident", *(COMPLETE.format(*each) for each in (*COMPLETIONS, (1024, 1024, "from memory")))
    )


def gains_ahead(column: str) -> list[float]:
    """Median without `scheduler.ahead` over that with it: 1 request, then 16."""
    return [
        measured.middle(f"gpu/ahead/decode_{requests}/without", column, "megakernel")
        / measured.middle(f"gpu/ahead/decode_{requests}/with", column, "megakernel")
        for requests in (1, 16)
    ]


def merging_gains(model: str) -> list[float]:
    """The gain of `fused_qkv` of each run of a model."""
    return [
        measured.gain(f"gpu/qkv/{work}_{model}", "wall_ms", "fused_qkv")
        for work in ("prefill", "decode_1", "decode_16")
    ]


def waits_longest(case: str) -> str:
    """The op of a decode step by the megakernel whose instructions wait longest for their inputs."""
    rows = [row for row in account.read(REFERENCE / "gpu/bench/megakernel") if row["case"] == case]
    return str(max(rows, key=lambda row: float(row["wait_us"]))["op"])


def spreads(folder: str, case: str) -> tuple[float, float]:
    """The spread of a case of a benchmark within its processes (in the median), and between their medians."""
    (row,) = (each for each in figures.read(REFERENCE / folder) if each["case"] == case)
    groups = figures.groups(row)
    middles = [median(group) for group in groups]
    within = median((max(group) - min(group)) / median(group) for group in groups)
    return within, (max(middles) - min(middles)) / median(middles)


def there_and_back_ns() -> list[float]:
    """The medians of one record there and back through the ring, of all repeats in all processes, sorted."""
    rows = figures.read(REFERENCE / "cpu/bench/ring")
    (row,) = (each for each in rows if each["case"] == "one record there and back, p50")
    return sorted(value for group in figures.groups(row) for value in group)


def attention_us(caches: str) -> list[float]:
    """The times of a launch of attention, from 1 request to 64."""
    cases = (f"{n} request{'s'[: n > 1]} of 4,096 tokens, {caches}: a launch" for n in (1, 4, 16, 64))
    return measured.bench("gpu/bench/attention", *cases)


def picture_base() -> bool:
    """Whether the README's picture shows speed-ups over `engine`, measured on an H200."""
    text = (REFERENCE / "readme/decode.svg").read_text(encoding="utf-8")
    return "Speed-up over engine, NVIDIA H200" in text and "wall time of baseline" not in text


def prefill_is_joined() -> bool:
    """Whether the two modes that join commands of prompts are the fastest of `prefill`."""
    return ranked("prefill")[:2] == ["pointer_array", "grouped"]


def largest_gain_least() -> bool:
    """Whether merging q, k and v gains least with Llama 3 8B, for prompts and for decode."""
    gains = {model: merging_gains(model) for model in ("folovllm", "llama_3_2_1b", "llama_3_8b", "qwen3_0_6b")}
    return all(min(gains, key=lambda model: gains[model][work]) == "llama_3_8b" for work in range(3))


CLAIMS: list[Claim] = [  # page of outputs/reference, text, and whether the files say so
    (
        "RESULTS.md",
        "Every table of a GPU on this page is of an H200; tables without a GPU are of two cores",
        lambda: machines("outputs/reference/RESULTS.md") == {H200, CPU},
    ),
    ("RESULTS.md", "join them, and are the fastest", prefill_is_joined),
    ("RESULTS.md", "so they are slower than ` ` here", loops_are_behind),
    ("RESULTS.md", "Llama 3 8B, which has the largest weights, gains least", largest_gain_least),
    (
        "RESULTS.md",
        "A CPU run of 1,000 commands misses its goal on both machines",
        lambda: (
            [measured.missed_goals(f"{kind}/bench/pipeline", "1,000 commands") for kind in ("cpu", "gpu")] == [1, 1]
        ),
    ),
    (
        "RESULTS.md",
        "every completion misses it, and the larger the command the more",
        lambda: completions_us()[0] > 2 and completions_us() == sorted(completions_us()),
    ),
    (
        "RESULTS.md",
        "With 16 requests it shortens the time per output token. With one request it changes next to nothing",
        lambda: gains_ahead("tpot_p50_ms")[1] > 1.04 and 0.99 < gains_ahead("tpot_p50_ms")[0] < 1.01,
    ),
    ("RESIDENT.md", "All are of an H200", lambda: machines("outputs/reference/RESIDENT.md") == {H200}),
    (
        "RESIDENT.md",
        "Blocks wait longest in the GEMM 2048x2048, for the output of attention",
        lambda: waits_longest("Llama 3.2 1B bf16, 1 request") == "GEMM 2048x2048 + ADD",
    ),
    (
        "STACKS.md",
        "is the fastest in nine of the 16 tables. A stack above it is faster with 64 requests, with 4 requests of "
        "Qwen3 0.6B, and in ` ` with 16 requests of Qwen3 0.6B",
        lambda: (
            len(waterfalls()) == 16
            and {run for run, mode in waterfalls().items() if mode != "megakernel"}
            == {f"{run}/{order}" for run in FASTER_STACKS for order in ORDERS} | {FASTER_STACK}
        ),
    ),
]
GUIDE_CLAIMS: list[Claim] = [  # the same for README and docs
    ("README.md", "A bar is the speed-up in wall time over ` `, without asynchronous scheduling", picture_base),
    ("README.md", "Speed-up of every mode over engine, for 1, 16 and 64 requests on an NVIDIA H200", picture_base),
    (
        "docs/which-strategy.md",
        "All tables on this page are of an H200",
        lambda: machines("docs/which-strategy.md") == {H200},
    ),
    (
        "docs/architecture.md",
        "The repeats of one process can agree with each other, and differ from those of the next one",
        lambda: spreads("gpu/bench/pipeline", REFUSED)[0] * 10 < spreads("gpu/bench/pipeline", REFUSED)[1],
    ),
    (
        "docs/tensor-parallel.md",
        "brings more on two GPUs than on one",
        lambda: all(split_factors()[row + 1] > split_factors()[row] for row in (1, 8)),
    ),
    (
        "docs/strategies.md",
        "Two of four goals are missed",
        lambda: sorted(measured.goals_met("gpu/bench/attention").values()) == [False, False, True, True],
    ),
    (
        "docs/strategies.md",
        "Pages are read faster than contiguous caches, with each number of requests",
        lambda: all(
            paged < whole
            for paged, whole in zip(attention_us("pages of 16 tokens"), attention_us("contiguous"), strict=True)
        ),
    ),
]
