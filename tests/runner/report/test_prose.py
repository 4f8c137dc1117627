"""A measured figure in the text around the tables is one that a committed file has, or it is not there."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from support import measured, measured_goals, measured_tables
from support.prose import prose

PAGES = ("RESULTS.md", "RESIDENT.md", "STACKS.md")
UNITS = r"us|ms|ns|s|MHz|GHz|GB/s|[KMG]i?B|%|x|minutes|hours|cycles"
NUMBERS = "half|thirds?|quarters?|fifths?|sixths?|tenths?|twice|double"
# A number with a unit, or a share in words. Code is left out: it holds settings, and a test runs it.
MEASURED = re.compile(rf"\b\d[\d,.]*\s?(?:{UNITS})(?![\w-])|\b(?:{NUMBERS})\b")


AZURE, MOONCAKE, QWEN = "gpu/azure_llama_3_8b", "gpu/mooncake_llama_3_2_1b", "gpu/replay_qwen3_0_6b"
LOADS, STRATEGIES = ("held", "overload"), "gpu/strategies"
# What the design, a rule or a setting fixes, and nobody measured.
DESIGN = ("each multiplies half of k", "first half of the arrivals", "by more than 1%", "the timeout of 300 us")
# Page, text with a figure, and whether the committed files say so.
CLAIMS: list[tuple[str, str, Callable[[], bool]]] = [
    *(("STACKS.md", text, holds) for text, holds in measured_goals.STEP_CLAIMS),
    *measured_tables.CLAIMS,
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
        "at half of the recorded speed, and at ten times the recorded speed. "
        "The first overloads neither mode, the second both",
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
        "` `: on as many GPUs of one host, each part with an equal share of the cores",
        lambda: measured.shared_cores() == {(2, 0.5)},
    ),
    (
        "RESULTS.md",
        "a median of 96.70 ms against 97.68 ms in ` `, and 6.786 ms against 6.777 ms in ` `",
        lambda: measured.job_walls_ms() == ["96.70", "97.68", "6.786", "6.777"],
    ),
    (
        "RESULTS.md",
        "took 12.5 us beside another part (gpu/strategies/gemv_micro). Alone it took 13.2 us in one run "
        "(goals/independent), and 8.8 us in another (gpu/gpu_kernel_batcher)",
        lambda: [round(measured.command_us(folder, "baseline"), 1) for folder in measured.GEMVS] == [12.5, 13.2, 8.8],
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
        "in the median, first and further tokens come a little sooner with ` `, and at p99 later",
        lambda: (
            all(1 < measured.gain(f"{QWEN}/bf16", f"{time}_p50_ms", "batched") < 1.1 for time in ("ttft", "tpot"))
            and all(measured.gain(f"{QWEN}/bf16", f"{time}_p99_ms", "batched") < 1 for time in ("ttft", "tpot"))
        ),
    ),
    (
        "RESULTS.md",
        "The CPU time of ` ` is 3% above that of a bare loop",
        lambda: (
            [f"{each(measured.cases('gpu/bench/dispatch', 'ratio')):.2f}" for each in (min, max)] == ["1.03", "1.03"]
        ),
    ),
    (
        "RESULTS.md",
        "Rings of 16,384 records or more carry more in bulk",
        lambda: (
            max(measured.cases("cpu/bench/ring", "bulk")[:3]) < min(measured.cases("cpu/bench/ring", "bulk")[3:])
            and len(measured.cases("cpu/bench/ring", "bulk")) == 5
        ),
    ),
    (
        "RESULTS.md",
        "All goals of the ring are met in the median",
        lambda: measured.missed_goals("cpu/bench/ring", "") == 0,
    ),
    (
        "RESULTS.md",
        "From one repeat to the next a record there and back takes 180 to 220 ns, or 660 to 730 ns",
        lambda: (
            {round(each, -1) for each in measured_tables.there_and_back_ns()}
            == {180, 190, 210, 220, 660, 670, 690, 730}
        ),
    ),
    (
        "RESULTS.md",
        "Three modes miss the goal for the Python around a launch call with 64 commands of gemv_256 a launch. "
        "Six miss it in decode",
        lambda: [measured.missed_goals("gpu/bench/modes", work) for work in ("(gemv_256", "(decode", "")] == [3, 6, 9],
    ),
    (
        "RESULTS.md",
        "made 80 to 115 launch calls where ` ` made 2,563",
        lambda: (
            [measured_tables.calls_of_16(*modes) for modes in (measured_tables.FEW_CALLS, ["coalesced"])]
            == [(80, 115), (2563, 2563)]
        ),
    ),
    (
        "RESULTS.md",
        "Of the rates of ` ` only that of gemv_256 in fp16 misses its goal",
        lambda: (
            measured.missed_goals("gpu/bench/pipeline", "batched")
            == measured.missed_goals("gpu/bench/pipeline", "gemv_256 fp16")
            == 1
        ),
    ),
    ("STACKS.md", "so it is slower than ` ` (break-even ` `)", measured_goals.graph_is_slower),
    ("RESIDENT.md", "Of the work that this adds, most is in the GEMMs", lambda: measured.more_work() > 0.6),
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
        "Repeats of the stream of 256x256 differ by over a quarter",
        lambda: max(measured.stream_ns()) / min(measured.stream_ns()) > 1.25,
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


@pytest.mark.parametrize(
    "typed", ["takes 12.5 us", "is 3x faster", "at 95% of peak", "reads 4,400 GB/s", "a third of it"]
)
def test_a_figure_is_recognised(typed: str) -> None:
    assert MEASURED.search(typed)
