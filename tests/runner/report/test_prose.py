"""A measured figure in the text around the tables is one that a committed file has, or it is not there."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from support import measured
from support.measured import REFERENCE
from support.paths import ROOT

from launchopt.files import read_json

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


DESIGN = ("each multiplies half of k",)  # shares that the kernel's design fixes, and nobody measured
# Page, text with a figure, and whether the committed files say so.
CLAIMS: list[tuple[str, str, Callable[[], bool]]] = [
    ("RESULTS.md", "The clock stayed at 1,980 MHz", lambda: measured.lowest_clock() == 1980),
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
        lambda: (
            measured.throttled_share("gpu/qkv/prefill_llama_3_8b") == 1
            and measured.throttled_share("gpu/decode_in_order/fp32_64") > 0.5
        ),
    ),
    (
        "RESULTS.md",
        "` ` is the fastest in all twelve tables",
        lambda: measured.fastest_modes("gpu/qkv") == 12 * ["fused_qkv"],
    ),
    ("RESIDENT.md", "more than four fifths of a round trip of 16x64", lambda: measured.lone_answer() > 0.8),
    (
        "RESIDENT.md",
        "needs less than half of the time with fp32",
        lambda: 0.40 < measured.nothing_multiplied("fp32") < 0.5,
    ),
    ("RESIDENT.md", "it needs three quarters of the time", lambda: 0.70 < measured.nothing_multiplied("fp16") < 0.80),
    (
        "RESIDENT.md",
        "where a command has half the bytes",
        lambda: 0.49 < measured.command_bytes("fp16") / measured.command_bytes("fp32") < 0.51,
    ),
    (
        "RESIDENT.md",
        "Without weights it still takes three quarters of the time",
        lambda: (
            0.70 < measured.decode_account()[0]["without_weights_us"] / measured.decode_account()[0]["kernel_us"] < 0.80
        ),
    ),
    (
        "RESIDENT.md",
        "and without waits nearly all of it",
        lambda: 0.95 < measured.decode_account()[0]["without_waits_us"] / measured.decode_account()[0]["kernel_us"] < 1,
    ),
    (
        "RESIDENT.md",
        "a chain of 32 short GEMMs",
        lambda: sum(row["instructions"] for row in measured.decode_account()) == 32,
    ),
    ("RESIDENT.md", "half of the time is waits", lambda: 0.45 < measured.share_of_waits() < 0.55),
    (
        "RESIDENT.md",
        "The whole run of decode, one request, takes more than 60 us a token; from the second token on it takes less",
        lambda: measured.token_ms("tpot_p50_ms") < 0.060 < measured.token_ms("wall_ms"),
    ),
    (
        "RESIDENT.md",
        "The completion of a small lone command comes later than 2.0 us",
        lambda: (
            measured.bench("gpu/bench/resident", "one command there and back, 16x1x64 fp32, hot, complete, p50")[0]
            > 2.0
        ),
    ),
    (
        "RESIDENT.md",
        "Each of 75 barriers, fences and waits of the megakernel was removed in turn; the tests notice 64",
        lambda: measured.orders_noticed() == (75, 64),
    ),
]


GUIDE_CLAIMS: list[tuple[str, str, Callable[[], bool]]] = [  # the same, of README and docs
    (
        "docs/experts.md",
        "With one token, our fused launches take about 20 us more than the read of the weights, with fp8 as with bf16",
        lambda: all(18 < measured.over_read("experts", row) < 22 for row in (0, 4)),
    ),
    (
        "docs/experts.md",
        "With 16 tokens the launches take 47 us more than the read with fp8, and 38 us with bf16; "
        "with 64 tokens 90 us and 78 us",
        lambda: [round(measured.over_read("experts", row)) for row in (6, 2, 7, 3)] == [47, 38, 90, 78],
    ),
    (
        "docs/gpu-kernel-batcher.md",
        "NVML reported the power limit in all repeats of ` ` in fp32, of gemv_micro and of decode",
        lambda: all(
            measured.throttled_share(f"gpu/gpu_kernel_batcher/{table}_fp32") == 0.5
            for table in ("gemv_micro", "decode")
        ),
    ),
    ("docs/experts.md", "with 64 tokens Triton's are 6% faster", lambda: 0.055 < measured.behind_triton() < 0.07),
    (
        "docs/quantised.md",
        "fp8 weights misses its goal by 7%",
        lambda: (
            round(100 * (measured.weight_goal("quantised", 4)[2] / measured.weight_goal("quantised", 4)[1] - 1)) == 7
        ),
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
