"""The verdict on a stream in words.

In: the judged lines of one stream, the baseline first, and the strategy to try first. Out: one to three sentences.
"""

from __future__ import annotations

from collections.abc import Sequence

from launchopt.analysis.line_names import named
from launchopt.analysis.metric import unit_of, unless_wall
from launchopt.analysis.stream_rows import digits, timeout
from launchopt.analysis.tables.columns import count, number, speedup
from launchopt.analysis.tables.rows import Line
from launchopt.analysis.verdict.bound import Bound, Side
from launchopt.analysis.verdict.evidence import call_time_ms, fewer_bytes
from launchopt.analysis.verdict.first_strategy import (
    CLOSE_ENOUGH,
    NEAR_CEILING,
    Choice,
    Judged,
    lacks_repeats,
    metric_of_all,
    times,
    times_of,
)
from launchopt.analysis.verdict.roofline import recorded_launches
from launchopt.statistics.interval import FEWEST_REPEATS, SMALLEST_EFFECT, Verdict


def sentence(lines: Sequence[Judged], choice: Choice | None, errors: Sequence[str]) -> str:
    """Return the verdict on a stream: the baseline's bottleneck, the evidence, the choice, and the gain left."""
    if errors:
        return f"Impossible: {errors[0]}. No number of this run may be used before that is understood."
    subject = lines[0]
    mode = name_of(subject, lines)
    if not subject.is_sound:
        return f"No verdict: {mode} {'was ' if subject.evidence[0] == 'not verified' else ''}{subject.evidence[0]}."
    opening = f"{mode} is {subject.name}: {_reason(subject)}." if subject.bound is not Bound.UNDECIDED else ""
    parts = [opening or f"{mode} has an undetermined bottleneck: {_reason(subject)}."]
    return " ".join([*parts, _advice(lines, choice), *_others(lines, choice)]).replace("  ", " ").strip()


def name_of(judged: Judged, lines: Sequence[Judged]) -> str:
    """Return the name of a line among the others of its stream."""
    return named(judged.strategy.line, [each.strategy.line for each in lines])


def _reason(judged: Judged) -> str:
    """Return the evidence for the bottleneck in one clause."""
    line, work, shares = judged.strategy.line, judged.prediction.work, judged.shares
    wall = f"{number(judged.prediction.measured_ms)} ms"
    host, in_calls = shares.host or 0.0, (shares.host or 0.0) + shares.blocked
    match judged.bound, judged.side:
        case Bound.MEMORY | Bound.COMPUTE, _:
            part = f"{100 * judged.roof:.1f}% of" if judged.roof <= 1 else "all of"
            memory = ("bytes", work.bandwidth)
            what, at = memory if judged.bound is Bound.MEMORY else ("FLOPs", "the measured peak")
            return f"its {what} alone take {part} its {wall} at {at}"
        case Bound.QUEUE, Side.ARRIVALS:
            waited, latency = line.median("queue_wait_p50_us"), line.median("latency_p50_us")
            is_known = waited is not None and latency
            share = (
                f"; {number(waited)} us of a latency of {number(latency)} us are queue wait (medians)"
                if is_known
                else ""
            )
            return f"the open loop kept up, so that its {wall} is how long the requests took to come{share}"
        case Bound.QUEUE, _:
            part = f"{100 * shares.waited:.0f}% of its {wall}"
            return f"batches waited for their deadline of {timeout(line['timeout_us'])} us, in all for up to {part}"
        case Bound.COMMAND, _:
            faster = times(1 / (1 - (shares.saved or 0.0)))
            together = "the cost is per command (launch, queue and Python together)"
            return f"by the medians, fewer launches made it {faster} faster, so {together}"
        case Bound.LAUNCH, Side.HOST:
            return f"{100 * in_calls:.0f}% of its {wall} is inside launch calls ({_calls(judged)}){_while_busy(judged)}"
        case Bound.LAUNCH, _:
            idle = 100 * (1 - (shares.busy or 0.0))
            return f"the GPU is idle for {idle:.0f}% of its {wall} while launch calls take {100 * in_calls:.0f}%"
        case Bound.LATENCY, Side.SHORT_KERNELS | Side.SLOW_KERNELS:
            return _kernels(judged)
        case Bound.LATENCY, _:
            return (
                f"launch calls wait for the GPU ({100 * shares.blocked:.0f}% of its {wall}), which reaches"
                f" {100 * judged.roof:.0f}% of its ceiling; a traced run would tell kernels from gaps"
            )
        case _:
            larger = "launch calls take" if host >= judged.roof else "at the roofline the work takes"
            return f"{larger} {100 * max(host, judged.roof):.0f}% of its {wall}; {_would_tell(judged)}"


def _would_tell(judged: Judged) -> str:
    if judged.shares.on_cpu:
        return "on the CPU a call returns when its work is done, and no mode with fewer calls took half as long"
    return "a traced run (timing=cupti) would tell kernels from gaps"


def _calls(judged: Judged) -> str:
    line = judged.strategy.line
    calls, total_ms = recorded_launches(line), call_time_ms(line)
    return "" if not calls or total_ms is None else f"{count(calls)} x {number(total_ms / calls * 1e3)} us"


def _while_busy(judged: Judged) -> str:
    return "" if (busy := judged.shares.busy) is None else f", while the GPU is busy for {100 * busy:.0f}%"


def _kernels(judged: Judged) -> str:
    strategy, shares, floor_ms = judged.strategy, judged.shares, judged.prediction.work.floor_ms
    each_us = (strategy.busy_ms or 0.0) / (strategy.kernels or 1.0) * 1e3
    asked = "" if floor_ms is None else f"; at the roofline the work takes {number(floor_ms)} ms"
    host = "" if shares.host is None else f" (and the launching thread for {100 * (shares.host + shares.blocked):.0f}%)"
    return (
        f"the GPU is busy for {100 * (shares.busy or 0.0):.0f}% of its {number(judged.prediction.measured_ms)} ms{host}"
        f" with {count(strategy.kernels)} kernels of {number(each_us)} us{asked}"
    )


def _advice(lines: Sequence[Judged], choice: Choice | None) -> str:
    subject = lines[0]
    if choice is not None and choice.judged is not None:
        gained = f"measured {speedup(choice.judged.strategy.line)}{_why(choice.judged)}"
        return f"Try {name_of(choice.judged, lines)} first: {gained}; {_left(choice.judged)}."
    if choice is not None:
        most = "" if subject.headroom is None else f", at most {times(subject.headroom)} by the roofline"
        return f"Try {choice.mode} first: not measured here{most}."
    if subject.roof >= NEAR_CEILING:
        return f"Already at the roofline: {_of_ceiling(subject)}."
    if subject.side is Side.DEADLINES:
        return "Try a shorter batching.timeout_us first."
    if subject.side is Side.ARRIVALS:
        return "No strategy makes requests come sooner: compare latencies (launchopt report RUN --frontier)."
    if subject.bound in (Bound.MEMORY, Bound.COMPUTE):
        return f"No launch strategy removes that: fewer bytes or FLOPs would ({fewer_bytes(subject.strategy.line)})."
    if lacks_repeats(lines):
        return f"The other modes were measured too few times for a verdict: repeats={FEWEST_REPEATS} gives one."
    return _open(lines)


def _open(lines: Sequence[Judged]) -> str:
    """Return which modes may be faster than the first line, or as fast, although no interval shows it."""
    quantises = bool(lines[0].strategy.line["quantised_inputs"])  # else outputs of modes that do are other ones
    all_lines = [each.strategy.line for each in lines]
    sound = [each.strategy.line for each in lines[1:] if each.is_sound]
    others = [line for line in sound if quantises or not line["quantised_inputs"]]
    undecided = [(line.speedup.value, line) for line in others if line.speedup and line.verdict is Verdict.UNDECIDED]
    likely = sorted((each for each in undecided if each[0] >= 1 - SMALLEST_EFFECT), key=lambda each: -each[0])
    if likely:
        how = ["faster" if factor > 1 + SMALLEST_EFFECT else "as fast" for factor, _ in likely]
        shown = zip(how[:2], likely, strict=False)
        return " ".join(
            f"{named(line, all_lines)} may be {word} ({speedup(line)}); undecided." for word, (_, line) in shown
        )
    if any(line.verdict is Verdict.FASTER for line in sound):  # one that does not is the choice
        return "Only modes that quantise inputs were faster, and their outputs are other ones."
    return "No other mode that was measured is faster." if any(line.speedup for line in others) else ""


def _of_ceiling(judged: Judged) -> str:
    """Return the share of the ceiling, or above 100% the ceiling alone: it was measured without an interval."""
    work = judged.prediction.work
    ceiling = "the measured matrix peak" if work.is_compute else f"{work.bandwidth} bandwidth"
    return ceiling if judged.roof > 1 else f"{100 * judged.roof:.1f}% of {ceiling}"


def _why(judged: Judged) -> str:
    """Return the effect of a strategy."""
    fewer, shared_by = judged.strategy.line.launch_reduction, judged.prediction.work.shared_by
    changes = [f"launch calls {times(fewer)} fewer"] if fewer is not None and fewer >= CLOSE_ENOUGH else []
    changes += [f"a weight read once for up to {digits(shared_by, 3)} requests"] if shared_by >= CLOSE_ENOUGH else []
    return f" ({', '.join(changes)})" if changes else ""


def _left(judged: Judged) -> str:
    """Return the gain that is left after a strategy."""
    headroom = judged.headroom
    then = f"it is then {judged.name}"
    if judged.bound is Bound.UNDECIDED:
        then = "its own bottleneck is not known" + ("" if judged.shares.on_cpu else " without a traced run")
    if headroom is None:
        return then
    if judged.roof >= NEAR_CEILING:
        return f"it then runs at {_of_ceiling(judged)}, so no other strategy is worth trying"
    return f"{then}, and the roofline leaves {times(headroom)}"


def _why_not(fastest: Line, subject: Line, chosen: Line) -> str:
    """Return why the fastest line is not the one to try first: the reason for which `first_to_try` left it out."""
    if fastest["quantised_inputs"]:
        return "it quantises inputs, so its outputs are other ones"
    if fastest.disorder not in (None, subject.disorder, chosen.disorder):
        return str(fastest.disorder)
    return "takes more work in an engine"


def _others(lines: Sequence[Judged], choice: Choice | None) -> list[str]:
    """Return sentences on the fastest mode, if another was chosen, and on the modes without a verdict."""
    sentences = []
    if choice is not None and choice.judged is not None:
        faster = [each for each in lines if each.is_sound and each.strategy.line.verdict is Verdict.FASTER]
        own = times_of(faster)
        fastest = min(faster, key=lambda each: own[id(each)])
        if fastest is not choice.judged:
            metric = metric_of_all(faster)
            time = f"{number(own[id(fastest)])} {unit_of(metric)}{unless_wall([metric])}"
            why = _why_not(fastest.strategy.line, lines[0].strategy.line, choice.judged.strategy.line)
            sentences.append(f"Fastest is {name_of(fastest, lines)} ({time}), but {why}.")
        if choice.judged.strategy.line.disorder:
            sentences.append(f"Warning: {choice.judged.strategy.line.disorder}.")
    bad = [name_of(each, lines) for each in lines if not each.is_sound]
    return [*sentences, *([f"No verdict on {', '.join(bad)}: failed or not verified."] if bad else [])]
