"""A measured figure in the text around the tables is one that a committed file has, or it is not there."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from support import measured
from support.paths import ROOT
from support.prose import guide, prose

PAGES = ("RESULTS.md", "RESIDENT.md", "STACKS.md")
GUIDES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
UNITS = r"us|ms|ns|s|MHz|GHz|GB/s|[KMG]i?B|%|x|minutes|hours|cycles"
NUMBERS = "half|thirds?|quarters?|fifths?|sixths?|tenths?|twice|double"
# A number with a unit, or a share in words. Code is left out: it holds settings, and a test runs it.
MEASURED = re.compile(rf"\b\d[\d,.]*\s?(?:{UNITS})(?![\w-])|\b(?:{NUMBERS})\b")
# In README and docs: a time, a rate or a factor. Sizes, and shares in words, describe the program more than results.
TIMED = re.compile(
    r"(?<![\w.-])\d[\d,.]*\s?(?:[num]?s|seconds|minutes|hours|GB/s|x(?! \d)|%|(?:tokens|commands|requests)/s)(?![\w-])"
)


AZURE, MOONCAKE, QWEN = "gpu/azure_llama_3_8b", "gpu/mooncake_llama_3_2_1b", "gpu/replay_qwen3_0_6b"
LOADS, STRATEGIES, BATCHER = ("held", "overload"), "gpu/strategies", "gpu/gpu_kernel_batcher"
# What the design, a rule or a setting fixes, and nobody measured.
DESIGN = ("each multiplies half of k", "first half of the arrivals", "by more than 1%", "the timeout of 300 us")
STEP_CLAIMS: list[tuple[str, Callable[[], bool]]] = [  # about the goals of decode steps, on two pages
    (
        "The fused stack meets one goal of five",
        lambda: [row[4] for row in measured.step_goals()] == ["NO", "NO", "yes", "NO", "NO"],
    ),
    (
        "With Llama 3.2 1B, and with one request of Llama 3 8B, ` ` is within the goal that the stack misses",
        lambda: measured.megakernel_within() == [True, True, True, True, False],
    ),
    (
        "With one request of Llama 3.2 1B ` ` misses its",
        lambda: [row[7].endswith("NO") for row in measured.step_goals()] == [True, False, False, False, False],
    ),
]
# Page, text with a figure, and whether the committed files say so.
CLAIMS: list[tuple[str, str, Callable[[], bool]]] = [
    *(("STACKS.md", text, holds) for text, holds in STEP_CLAIMS),
    ("RESULTS.md", "The clock stayed at 1,980 MHz", lambda: measured.lowest_clock() == 1980),
    (
        "RESULTS.md",
        "a first token within 1 s and further tokens within 50 ms",
        lambda: measured.values_of(AZURE, "slo_ttft_ms", "slo_tpot_ms", "requests") == {(1000, 50, 100)},
    ),
    ("RESULTS.md", "No row is overloaded", lambda: measured.values_of(AZURE, "overloaded") == {(False,)}),
    (
        "RESULTS.md",
        "With continuous batching about half of its requests meet the objective, and fewer in every other row",
        lambda: 0.45 < measured.ranked_shares()[-1] < 0.55 and measured.ranked_shares()[-2] < 0.4,
    ),
    (
        "RESULTS.md",
        "` ` has the best goodput with either scheduler",
        lambda: all(
            max(found, key=found.__getitem__) == "engine" for found in map(measured.met_shares, ("none", "continuous"))
        ),
    ),
    (
        "RESULTS.md",
        "Continuous batching raises the goodput of each mode",
        lambda: all(
            share > measured.met_shares("none")[mode] for mode, share in measured.met_shares("continuous").items()
        ),
    ),
    (
        "RESULTS.md",
        "at half of the recorded speed, and at ten times the recorded speed. Only the second overloads both modes",
        lambda: [measured.values_of(f"{MOONCAKE}/{load}", "overloaded") for load in LOADS] == [{(False,)}, {(True,)}],
    ),
    (
        "RESULTS.md",
        "further tokens come nearly twice as fast with ` ` in the median",
        lambda: all(1.8 < measured.gain(f"{MOONCAKE}/{load}", "tpot_p50_ms", "batched") < 2 for load in LOADS),
    ),
    (
        "RESULTS.md",
        "NVML reported the power limit in all repeats of ` ` with prompts of Llama 3 8B, and of the replays with "
        "Llama 3 8B and Llama 3.2 1B. It did so in most repeats of decode in order with 64 requests in fp32, and of "
        "the replay with Qwen3-0.6B in bf16",
        lambda: (
            all(measured.throttled_share(folder) == 1 for folder in ("gpu/qkv/prefill_llama_3_8b", AZURE, MOONCAKE))
            and all(
                measured.throttled_share(folder) > 0.5 for folder in ("gpu/decode_in_order/fp32_64", QWEN + "/bf16")
            )
        ),
    ),
    (
        "RESULTS.md",
        "on two GPUs of one host, each part with half of the cores",
        lambda: measured.shared_cores() == {(2, 0.5)},
    ),
    (
        "RESULTS.md",
        "a median of 96.70 ms against 97.68 ms in ` `, and 6.786 ms against 6.777 ms in ` `",
        lambda: measured.job_walls_ms() == ["96.70", "97.68", "6.786", "6.777"],
    ),
    (
        "RESULTS.md",
        "In most rows that spend over half of the wall time in launch calls, the standard deviation of the five "
        "repeats is 10 to 20% of their mean. In most other rows it is below 5%",
        lambda: (
            measured.share_within(STRATEGIES, 0.1, 0.2, are_launches=True) > 0.5
            and measured.share_within(STRATEGIES, 0, 0.05, are_launches=False) > 0.5
        ),
    ),
    (
        "RESULTS.md",
        "` ` spends over half of it in all tables of steps",
        lambda: measured.least_launch_share(STRATEGIES, "engine") > 0.5,
    ),
    (
        "RESULTS.md",
        "come from a traced run of the same modes (` `)",
        lambda: measured.values_of(STRATEGIES, "traced") == {(False,), (True,)},
    ),
    (
        "RESULTS.md",
        "nine of 16 points have fallen behind",
        lambda: measured.overloaded_points("gpu/timeout_bucket/1800000") == (9, 16),
    ),
    (
        "RESULTS.md",
        "GEMMs of prompts take most of the time",
        lambda: measured.share_of_prompts(f"{QWEN}/fp32") > 0.5,
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
        "The stream of 256x256 takes more than 80 ns a command in the median, and less in the fastest repeat",
        lambda: measured.stream_ns()[0] < 80 < measured.stream_ns()[1],
    ),
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
    *(("docs/which-strategy.md", text, holds) for text, holds in STEP_CLAIMS),
    (
        "docs/experts.md",
        "With one token, our fused launches take about 20 us more than the read of the weights, with fp8 as with bf16",
        lambda: all(18 < measured.over_read("experts", row) < 22 for row in (0, 4)),
    ),
    (
        "docs/experts.md",
        "53 us against 41 us with 16 tokens, 105 us against 81 us with 64",
        lambda: [round(measured.over_read("experts", row)) for row in (6, 2, 7, 3)] == [53, 41, 105, 81],
    ),
    (
        "docs/gpu-kernel-batcher.md",
        "NVML reported the power limit in all repeats of ` ` in fp32, of gemv_micro and of decode",
        lambda: (
            [measured.throttled_share(f"{BATCHER}/{table}_fp32") for table in ("gemv_micro", "decode")] == [0.5, 0.5]
        ),
    ),
    (
        "docs/gpu-kernel-batcher.md",
        "and in one of ` ` in fp16, of gemv_micro",
        lambda: measured.throttled_share(f"{BATCHER}/gemv_micro_fp16") == 0.1,
    ),
    (
        "docs/profilers.md",
        "` ` takes over five times as long. Under all of these tools a launch call takes 1.3 to 2.1 times as long",
        lambda: measured.slowdowns("wall_ms")[1] > 5 and measured.slowdowns("host_submit_ns_per_launch") == [1.3, 2.1],
    ),
    (
        "docs/experts.md",
        "With 1 and 4 tokens our fused launches are faster than Triton's. With 16 tokens Triton's are 1% faster, "
        "with 64 tokens 9%",
        lambda: (
            all(measured.behind_triton(tokens) < 0 for tokens in (1, 4))
            and [round(100 * measured.behind_triton(tokens)) for tokens in (16, 64)] == [1, 9]
        ),
    ),
    ("docs/experts.md", "Seven of eight goals are missed", lambda: len(measured.missed("experts")) == 7),
    (
        "docs/quantised.md",
        "Four of five goals are missed: of the GEMVs two with fp8 by 5% and 2%, and the one with int4 by 19%; "
        "the step of Llama 3 8B by 38%",
        lambda: measured.missed("quantised") == [5, 2, 19, 38],
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
