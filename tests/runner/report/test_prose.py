"""A measured figure in the text around the tables is one that a committed file has, or it is not there."""

from __future__ import annotations

import re
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
from support.paths import ROOT

from launchopt.files import read_json
from launchopt.recording.manifest import LEFT_OUT
from launchopt.recording.results import read_summaries
from runner.bench import account, figures
from runner.report import weight_goals

REFERENCE = ROOT / "outputs/reference"
PAGES = ("RESULTS.md", "RESIDENT.md")
GUIDES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
UNITS = r"us|ms|ns|s|MHz|GHz|GB/s|[KMG]i?B|%|x|minutes|hours|cycles"
NUMBERS = "half|thirds?|quarters?|fifths?|sixths?|tenths?|twice|double"
# A number with a unit, or a share in words. Code is left out: it holds settings, and a test runs it.
MEASURED = re.compile(rf"\b\d[\d,.]*\s?(?:{UNITS})(?![\w-])|\b(?:{NUMBERS})\b")
# In README and docs: a time, a rate or a factor. Sizes, and shares in words, describe the program more than results.
TIMED = re.compile(
    r"(?<![\w.-])\d[\d,.]*\s?(?:[num]?s|seconds|minutes|hours|GB/s|x(?! \d)|%|(?:tokens|commands|requests)/s)(?![\w-])"
)


def _bench(folder: str, *cases: str) -> list[float]:
    rows = {row["case"]: row["median"] for row in figures.read(REFERENCE / folder)}
    return [float(rows[case]) for case in cases]


def _ratio(values: list[float]) -> float:
    return values[0] / values[1]


def _lone() -> float:
    command = "one command there and back, 16x1x64 fp32, hot, "
    return _ratio(
        _bench("gpu/bench/resident", f"{command}its words alone, p50", f"{command}its outputs with the host, p50")
    )


def _nothing_multiplied(dtype: str) -> float:
    stream = f"a command of 4,000 256x1x256 {dtype}"
    return _ratio(_bench("gpu/bench/stream", f"{stream}, nothing multiplied", f"{stream}, as they wait in the ring"))


def _bytes(dtype: str) -> float:
    """The time of a command's bytes, which is in proportion to them."""
    return _bench(
        "gpu/bench/stream", f"a command of 4,000 256x1x256 {dtype}, its bytes at the measured copy bandwidth"
    )[0]


def _decode() -> list[dict[str, Any]]:
    return [row for row in account.read(REFERENCE / "gpu/bench/megakernel") if row["case"] == "decode fp16, 1 request"]


def _waits() -> float:
    rows = _decode()
    wait, work, between = (sum(row[f"own_{part}_us"] for row in rows) for part in ("wait", "work", "between"))
    return float(wait / (wait + work + between))


def _token_ms(column: str) -> float:
    """Median time a token of the megakernel in decode with one request: TPOT, or of the whole run."""
    rows = [row for row in read_summaries([REFERENCE / "gpu/resident/decode_1"]) if row["mode"] == "megakernel"]
    return median(row[column] / (row["tokens"] if column == "wall_ms" else 1) for row in rows)


def _orders() -> tuple[int, int]:
    """The barriers, fences and waits that were removed, and how many of those were noticed."""
    lines = (REFERENCE / "gpu/resident/kernel_orders.txt").read_text().partition("\n\n")[2].splitlines()
    removed = sum(bool(line) and not line.startswith(" ") for line in lines)
    return removed, removed - sum("not noticed" in line for line in lines)


def _lowest_clock() -> int:
    manifests = [read_json(path) for path in (REFERENCE / "gpu/ahead").glob("*/*/manifest.json")]
    return min(clock for each in manifests for clock in each[LEFT_OUT]["sm_clock_mhz"])


def _goal(name: str, row: int) -> tuple[float, float, float]:
    """Read floor, goal and median of a row of the goals of quantised weights or experts, in us; the goal may be NaN."""
    path = REFERENCE / name / weight_goals.FILE
    cells = weight_goals._cells(path.parent, read_json(path)["goals"][row])[2:5]
    floor, goal, median = (float(re.sub(r"[^\d.]", "", cell.partition(" ")[0]) or "nan") for cell in cells)
    return floor, goal, median


def _over_read(name: str, row: int) -> float:
    floor, _, median = _goal(name, row)
    return median - floor


def _behind_triton() -> float:
    modes = {"own": "graph+route+activate+combine+pdl", "triton": "triton_experts+graph+pdl"}
    rows = read_summaries([REFERENCE / "experts/bf16_64"])
    own, triton = (median(row["wall_ms"] for row in rows if row["mode"] == mode) for mode in modes.values())
    return own / triton - 1


def _throttled(folder: str) -> float:
    rows = read_summaries([REFERENCE / folder])
    return sum(bool(row["throttled"]) for row in rows) / len(rows)


def _fastest(folder: str) -> list[str]:
    """The mode with the smallest median wall time in each run below a folder."""
    walls: dict[str, dict[str, list[float]]] = {}
    for row in read_summaries([REFERENCE / folder]):
        walls.setdefault(row["run_id"], {}).setdefault(row["mode"], []).append(row["wall_ms"])
    return [min(modes, key=lambda mode: median(modes[mode])) for modes in walls.values()]


DESIGN = ("each multiplies half of k",)  # shares that the kernel's design fixes, and nobody measured
# Page, text with a figure, and whether the committed files say so.
CLAIMS: list[tuple[str, str, Callable[[], bool]]] = [
    ("RESULTS.md", "The clock stayed at 1,980 MHz", lambda: _lowest_clock() == 1980),
    (
        "RESULTS.md",
        "a first token within 1 s and further tokens within 50 ms",
        lambda: all(
            read_json(path)["config"]["slo"] == {"ttft_ms": 1000, "tpot_ms": 50}
            for path in (REFERENCE / "gpu/azure_llama_3_8b").glob("*/manifest.json")
        ),
    ),
    (
        "RESULTS.md",
        "NVML reported the power limit in all repeats of ` ` with prompts of Llama 3 8B, and in most of decode in "
        "order with 64 requests in fp32",
        lambda: _throttled("gpu/qkv/prefill_llama_3_8b") == 1 and _throttled("gpu/decode_in_order/fp32_64") > 0.5,
    ),
    (
        "RESULTS.md",
        "` ` is the fastest in all twelve tables",
        lambda: _fastest("gpu/qkv") == 12 * ["fused_qkv"],
    ),
    ("RESIDENT.md", "more than four fifths of a round trip of 16x64", lambda: _lone() > 0.8),
    ("RESIDENT.md", "needs less than half of the time with fp32", lambda: 0.40 < _nothing_multiplied("fp32") < 0.5),
    ("RESIDENT.md", "it needs three quarters of the time", lambda: 0.70 < _nothing_multiplied("fp16") < 0.80),
    ("RESIDENT.md", "where a command has half the bytes", lambda: 0.49 < _bytes("fp16") / _bytes("fp32") < 0.51),
    (
        "RESIDENT.md",
        "Without weights it still takes three quarters of the time",
        lambda: 0.70 < _decode()[0]["without_weights_us"] / _decode()[0]["kernel_us"] < 0.80,
    ),
    (
        "RESIDENT.md",
        "and without waits nearly all of it",
        lambda: 0.95 < _decode()[0]["without_waits_us"] / _decode()[0]["kernel_us"] < 1,
    ),
    ("RESIDENT.md", "a chain of 32 short GEMMs", lambda: sum(row["instructions"] for row in _decode()) == 32),
    ("RESIDENT.md", "half of the time is waits", lambda: 0.45 < _waits() < 0.55),
    (
        "RESIDENT.md",
        "The whole run of decode, one request, takes more than 60 us a token; from the second token on it takes less",
        lambda: _token_ms("tpot_p50_ms") < 0.060 < _token_ms("wall_ms"),
    ),
    (
        "RESIDENT.md",
        "The completion of a small lone command comes later than 2.0 us",
        lambda: _bench("gpu/bench/resident", "one command there and back, 16x1x64 fp32, hot, complete, p50")[0] > 2.0,
    ),
    (
        "RESIDENT.md",
        "Each of 75 barriers, fences and waits of the megakernel was removed in turn; the tests notice 64",
        lambda: _orders() == (75, 64),
    ),
]


GUIDE_CLAIMS: list[tuple[str, str, Callable[[], bool]]] = [  # the same, of README and docs
    (
        "docs/experts.md",
        "With one token, our fused launches take about 20 us more than the read of the weights, with fp8 as with bf16",
        lambda: all(18 < _over_read("experts", row) < 22 for row in (0, 4)),
    ),
    (
        "docs/experts.md",
        "With 16 tokens the launches take 47 us more than the read with fp8, and 38 us with bf16; "
        "with 64 tokens 90 us and 78 us",
        lambda: [round(_over_read("experts", row)) for row in (6, 2, 7, 3)] == [47, 38, 90, 78],
    ),
    (
        "docs/gpu-kernel-batcher.md",
        "NVML reported the power limit in all repeats of ` ` in fp32, of gemv_micro and of decode",
        lambda: all(_throttled(f"gpu/gpu_kernel_batcher/{table}_fp32") == 0.5 for table in ("gemv_micro", "decode")),
    ),
    ("docs/experts.md", "with 64 tokens Triton's are 6% faster", lambda: 0.055 < _behind_triton() < 0.07),
    (
        "docs/quantised.md",
        "fp8 weights misses its goal by 7%",
        lambda: round(100 * (_goal("quantised", 4)[2] / _goal("quantised", 4)[1] - 1)) == 7,
    ),
]
# Figures of README and docs that are no results: pages, and texts that have them. Measured ones stand in GUIDE_CLAIMS.
RULES = {  # of verdicts, intervals, checks and goals, and what the input of an example is
    "README.md": ("its 95% interval",),
    "docs/advise.md": ("its 95% interval", "over 5%", "within 5%"),
    "docs/arrivals.md": ("0.3%.", "is 50 ns"),
    "docs/compare.md": (
        *("(1%)", "differ by 1%", "3.5% in 90%", "3% in 75%", "3% in 90%"),
        *("than 93%", "than 5%", "of 93.75%", "95% intervals", "within 1%"),
    ),
    "docs/honesty.md": ("below 93%", "at 1.5x", "than 5%", "fills 95%"),
    "docs/models-and-traces.md": ("always comes 6 us late",),
    "docs/profilers.md": ("below 60%", "most 1%"),
    "docs/python.md": ("its 95% interval",),
    "docs/results.md": ("is a 95%",),
    "docs/strategies.md": ("Within 5%", "within 5%", "95% interval"),
}
LIMITS = {  # of this program, or about how long a command takes
    "README.md": ("(13 minutes on two cores)", "(2 hours)"),
    "docs/advise.md": ("than 60 s",),
    "docs/faults.md": ("(60 s; 0: never)", "most 60 s"),
    "docs/honesty.md": ("least 5 s",),
    "docs/launchers.md": ("up to 10 s", "30 seconds before"),
    "docs/python.md": ("every 30 seconds",),
}
# The text below a generated table of these marks is about the rows of its file; it is read with them, not computed.
EXPLAINED = {"docs/experts.md": "experts_kernels", "docs/quantised.md": "quantised_kernels"}


def prose(page: str) -> str:
    """The text of a page without tables, code and links, in one line."""
    return stripped((REFERENCE / page).read_text(encoding="utf-8"), r"|^\|.*?$")


def guide(page: str) -> str:
    """The text of README or of a page of docs, with the tables that are typed by hand."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if mark := EXPLAINED.get(page):
        text = re.sub(rf"(<!-- /{mark} -->).*?(?=^## |\Z)", r"\1\n", text, flags=re.S | re.M)
    return stripped(text)


def stripped(text: str, more: str = "") -> str:
    """Text without generated blocks, code, links and what `more` matches, in one line."""
    text = re.sub(rf"<!-- report:(\S+) -->.*?<!-- /report:\1 -->|```.*?```{more}", " ", text, flags=re.S | re.M)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", "` `", text)
    return " ".join(text.split())


@pytest.mark.parametrize(("page", "text", "holds"), CLAIMS, ids=[text for _, text, _ in CLAIMS])
def test_a_claim_is_on_its_page_and_the_files_say_so(page: str, text: str, holds: Callable[[], bool]) -> None:
    assert text in prose(page)
    assert holds()


@pytest.mark.parametrize("page", PAGES)
def test_no_other_measured_figure_is_typed_by_hand(page: str) -> None:
    text = prose(page)
    for claim in (*DESIGN, *(text for own, text, _ in CLAIMS if own == page)):
        text = text.replace(claim, " ")
    found = [text[max(0, each.start() - 60) : each.end() + 20] for each in MEASURED.finditer(text)]
    assert not found, "take the figure from a file and list the claim in CLAIMS, or leave it out"


@pytest.mark.parametrize(("page", "text", "holds"), GUIDE_CLAIMS, ids=[text for _, text, _ in GUIDE_CLAIMS])
def test_a_claim_of_a_guide_is_on_its_page_and_the_files_say_so(
    page: str, text: str, holds: Callable[[], bool]
) -> None:
    assert text in guide(page)
    assert holds()


@pytest.mark.parametrize("page", GUIDES)
def test_a_guide_has_no_figure_but_claims_rules_and_limits(page: str) -> None:
    text = guide(page)
    allowed = (*RULES.get(page, ()), *LIMITS.get(page, ()), *(claim for own, claim, _ in GUIDE_CLAIMS if own == page))
    for known in allowed:
        assert known in text, "no longer there: leave it out of the lists"
        text = text.replace(known, " ")
    found = [text[max(0, each.start() - 60) : each.end() + 20] for each in TIMED.finditer(text)]
    assert not found, "take the figure from a file (GUIDE_CLAIMS), list it (RULES, LIMITS), or leave it out"


@pytest.mark.parametrize(
    "typed", ["takes 12.5 us", "is 3x faster", "at 95% of peak", "reads 4,400 GB/s", "a third of it"]
)
def test_a_figure_is_recognised(typed: str) -> None:
    assert MEASURED.search(typed)


@pytest.mark.parametrize("typed", ["takes 12.5 us", "is 1.3x faster", "at 95% of peak", "gives 4,400 tokens/s"])
def test_a_figure_of_a_guide_is_recognised(typed: str) -> None:
    assert TIMED.search(typed)
