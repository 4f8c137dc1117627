"""Evidence for a verdict: the parts of a line's wall time, as shares for the rules and as sentences.

In: a `strategies.StrategyLine` and its `roofline.Prediction`. Out: `bound.Shares`, and a list of facts.
"""

from __future__ import annotations

from launchopt.analysis.metric import has_kept_up, is_overloaded
from launchopt.analysis.stream_rows import digits, timeout
from launchopt.analysis.submits import submit_ms
from launchopt.analysis.tables.bandwidth import unsteady
from launchopt.analysis.tables.columns import count, number
from launchopt.analysis.tables.rows import Line
from launchopt.analysis.tables.strategies import StrategyLine
from launchopt.analysis.verdict.bound import Shares
from launchopt.analysis.verdict.roofline import Prediction, first_calls_us, recorded_launches

# Fewer launches in flight than this cannot fill a GPU's launch queue (about 1,024), so no call waits for space in it.
LAUNCH_QUEUE = 1000
NOTABLE = 0.05  # minimum share of the wall time for a sentence about it
AGREES = 0.1  # maximum relative difference at which predicted and measured time agree


def shares_of(strategy: StrategyLine, prediction: Prediction, saved: float | None = None) -> Shares:
    """Return the shares of the wall time for `bound.classify`.

    saved: share that the fastest line with at most half as many launch calls saved.
    """
    line, wall_ms, work = strategy.line, prediction.measured_ms, prediction.work
    if not wall_ms:
        return Shares()

    def share(ms: float | None) -> float | None:
        return None if ms is None else ms / wall_ms

    first_ms, call_ms = launching_ms(line), call_time_ms(line)
    busy_ms, kernels = strategy.busy_ms, strategy.kernels
    return Shares(
        bytes=share(work.bytes_ms),
        flops=share(work.flops_ms),
        host=share(first_ms),
        blocked=max(0.0, (call_ms or 0.0) - (first_ms or 0.0)) / wall_ms,
        busy=share(None if busy_ms is None else min(busy_ms, wall_ms)),
        kernel_us=busy_ms / kernels * 1e3 if busy_ms is not None and kernels else None,
        waited=min(1.0, _deadlines_ms(line) / wall_ms),
        kept_up=line["arrival"] != "closed" and has_kept_up(line.rows),
        on_cpu=line["device"] == "cpu",
        saved=saved,
    )


def call_time_ms(line: Line) -> float | None:
    """Return the time inside launch calls, at most the wall time. It includes waits for space in the launch queue."""
    call_ms, wall_ms = line.median_of(submit_ms), line.median("wall_ms")
    return None if call_ms is None or not wall_ms else min(call_ms, wall_ms)


def launching_ms(line: Line) -> float | None:
    """Return the host's own time in launch calls. If later calls can wait for space, all count like the first."""
    calls, us = recorded_launches(line), first_calls_us(line)
    if calls is None or us is None:
        return None
    most = call_time_ms(line)
    return most if most is not None and not _can_fill_the_queue(line, calls) else min(calls * us / 1e3, most or 0.0)


def _can_fill_the_queue(line: Line, launches: float) -> bool:
    """Return whether launches can fill the launch queue; a CPU has none.

    In a closed loop with order kept, each request has at most one step in flight.
    """
    if launches <= LAUNCH_QUEUE or line["device"] == "cpu":
        return False
    tokens, requests = line.median("tokens"), line["requests"]
    if not tokens or not requests or line["arrival"] != "closed" or line["ordering"] != "per_request":
        return True
    return bool(launches / tokens * requests > LAUNCH_QUEUE)


def _deadlines_ms(line: Line) -> float:
    """Return the time that batches waited for their deadline, in sequence.

    It is 0 if most batches were flushed for another reason.
    """
    missed, batches, timeout_us = line.median("flush_deadline"), line.median("batches"), line["timeout_us"]
    return missed * timeout_us / 1e3 if missed and batches and timeout_us and missed >= batches / 2 else 0.0


def evidence_of(strategy: StrategyLine, prediction: Prediction) -> list[str]:
    """Return the facts about a line's wall time, in numbers."""
    facts = [_launches(strategy.line), _blocked(strategy.line), _busy(strategy, prediction), *_roofline(prediction)]
    facts.append(unsteady(strategy.line.rows))
    return [fact for fact in (*facts, *_queues(strategy.line), _explained(strategy, prediction)) if fact]


def fewer_bytes(line: Line) -> str:
    """Return what would need fewer bytes than a line: weights that are quantised already can at most become int4."""
    stored = str(line["weights"] or "")
    less = ["int4 weights"] if stored else ["a smaller dtype", "quantised weights"]
    shared = "more sharing" if line["expert_routing"] is None else "more tokens a step"
    return ", ".join([*([] if stored.startswith("int4") else less), shared])


def _percent(ms: float, wall_ms: float | None) -> str:
    if not wall_ms:
        return "of an unknown wall time"
    return f"{100 * ms / wall_ms:.1f}% of the wall time" if ms <= wall_ms else "all of the wall time"


def _launches(line: Line) -> str | None:
    calls, total_ms = recorded_launches(line), call_time_ms(line)
    mean_ns = line.median("host_submit_ns_per_launch")
    if calls is None or total_ms is None or mean_ns is None:
        return None
    share = _percent(total_ms, line.median("wall_ms"))
    capped = " at most: calls that copy are not counted apart" if calls * mean_ns / 1e6 > total_ms else ""
    copies = (line.median("launch_calls") or 0.0) - calls
    all_calls = f"{count(calls + copies)} in {count(calls)} launches: " if copies else ""
    each = f"{count(calls)} x {number(mean_ns / 1e3)} us = {number(total_ms)} ms"
    return f"launch calls: {all_calls}{each}, {share}{capped}"


def _blocked(line: Line) -> str | None:
    first_ms, total_ms, wall_ms = launching_ms(line), call_time_ms(line), line.median("wall_ms")
    us = first_calls_us(line)
    if first_ms is None or total_ms is None or us is None or not wall_ms or total_ms - first_ms < NOTABLE * wall_ms:
        return None
    more = f"{number(total_ms - first_ms)} ms, {_percent(total_ms - first_ms, wall_ms)}"
    return f"the first calls took {number(us)} us; the others took longer, as the launch queue was full ({more})"


def _busy(strategy: StrategyLine, prediction: Prediction) -> str | None:
    busy_ms, kernels, wall_ms = strategy.busy_ms, strategy.kernels, prediction.measured_ms
    if strategy.line["device"] == "cpu":
        return None
    if busy_ms is None or not kernels:
        return "GPU busy: not known without a traced run (timing=cupti)"
    each_us, floor_ms = busy_ms / kernels * 1e3, prediction.work.floor_ms
    asked = "" if floor_ms is None else f", where the roofline asks {number(floor_ms)} ms"
    share = _percent(busy_ms, wall_ms)
    return (
        f"GPU busy: {number(busy_ms)} ms, {share}{asked}: {count(kernels)} kernels of {number(each_us)} us"
        " (CUPTI, in a traced run)"
    )


def _roofline(prediction: Prediction) -> list[str]:
    work, wall_ms, facts = prediction.work, prediction.measured_ms, []
    if work.bytes_ms is not None and work.moved_ms is not None:
        facts.append(f"bytes: {number(work.moved_ms)} ms at {work.bandwidth}, {_percent(work.moved_ms, wall_ms)}")
        if work.packing_ms:
            facts[-1] += f", of which packing takes {number(work.packing_ms)} ms"
        if work.shared_by > 1 and work.all_bytes_ms is not None:
            facts[-1] += (
                f", if a batch reads a weight once for up to {digits(work.shared_by, 3)} requests;"
                f" {number(work.all_bytes_ms)} ms if each read its own"
            )
        elif work.is_cached and work.all_bytes_ms is not None:
            facts[-1] += f", each input read once; {number(work.all_bytes_ms)} ms if no cache kept them"
        elif work.least_bytes_ms is not None and work.least_bytes_ms < work.bytes_ms:
            facts[-1] += f"; {number(work.least_bytes_ms)} ms if all requests were to read a weight together"
    if work.flops_ms is not None and (work.is_compute or (wall_ms and work.flops_ms >= NOTABLE * wall_ms)):
        facts.append(f"FLOPs: {number(work.flops_ms)} ms at the measured peak, {_percent(work.flops_ms, wall_ms)}")
    return facts


def _queues(line: Line) -> list[str]:
    facts, wall_ms, batches = [], line.median("wall_ms"), line.median("batches")
    waited, latency = line.median("queue_wait_p50_us"), line.median("latency_p50_us")
    late = {name: line.median(f"flush_{name}") or 0 for name in ("deadline", "idle")}
    if batches and sum(late.values()) >= NOTABLE * batches:
        spelled = " and ".join(f"{count(flushes)} at {name}" for name, flushes in late.items() if flushes)
        facts.append(
            f"of {count(batches)} batches {spelled} were flushed, not full; timeout {timeout(line['timeout_us'])} us"
        )
    if line["arrival"] != "closed":
        facts += _pace(line)
        if waited is not None and latency:
            facts.append(f"queue wait: {number(waited)} us at the median, of a latency of {number(latency)} us")
    blocked_ms = line.median("producer_blocked_ms")
    if blocked_ms and wall_ms and blocked_ms >= NOTABLE * wall_ms:
        facts.append(
            f"the producer waited {number(blocked_ms)} ms for free slots of the ring: commands waited for launches"
        )
    return facts


def _pace(line: Line) -> list[str]:
    """Return whether the run kept up with its arrivals. If it did, few requests scatter the rate of completions."""
    due, done = line.median("arrival_rate_per_s"), line.median("completed_rate_per_s")
    if due is None or done is None:
        return []
    if has_kept_up(line.rows):
        return [f"open loop, kept up: {number(due)} due per second, all finished"]
    held = "overloaded" if is_overloaded(line.rows) else "not judged"
    reached = f", {number(done)} done" if done < due else ""  # not of a late rush, which drains fast
    return [f"open loop, {held}: {number(due)} due per second{reached}"]


def _explained(strategy: StrategyLine, prediction: Prediction) -> str | None:
    """Return the possible causes of the difference between prediction and measurement."""
    ratio, total_ms, measured_ms = prediction.ratio, prediction.total_ms, prediction.measured_ms
    if ratio is None or total_ms is None or measured_ms is None:
        is_cpu = strategy.line["device"] == "cpu"
        return "no prediction: on the CPU a call is also its work, which hides what a launch costs" if is_cpu else None
    text = f"predicted {number(total_ms)} ms, {100 * ratio:.0f}% of the measured {number(measured_ms)} ms"
    if abs(1 - ratio) <= AGREES:
        return text
    causes = _overestimated(strategy, prediction) if ratio > 1 else _underestimated(strategy, prediction)
    return f"{text}: {'; '.join(causes) or 'what explains the rest was not measured'}"


def _overestimated(strategy: StrategyLine, prediction: Prediction) -> list[str]:
    work, cost, us = prediction.work, prediction.launches, first_calls_us(strategy.line)
    causes = []
    if cost is not None and us is not None and us < cost.us * (1 - AGREES):
        causes.append(f"its launches cost {us:.2f} us, not {cost.us:.2f}")
    if work.shared_by == 1 and (work.all_bytes_ms or 0.0) > 0 and strategy.line.rows[0]["above_ceiling"]:
        causes.append("a cache served part of the bytes")
    return [*causes, "launches overlap with the GPU's work, and the sum assumes that nothing does"]


def _underestimated(strategy: StrategyLine, prediction: Prediction) -> list[str]:
    cost, line, busy_ms, us = prediction.launches, strategy.line, strategy.busy_ms, first_calls_us(strategy.line)
    wall_ms, launches_ms, call_ms = prediction.measured_ms or 0.0, cost.total_ms if cost else 0.0, call_time_ms(line)
    if line["arrival"] != "closed" and has_kept_up(line.rows):
        return ["the wall time is how long the requests took to come"]
    causes = []
    if cost is not None and us is not None and us > cost.us * (1 + AGREES):
        causes.append(f"its launches cost {us:.2f} us, not {cost.us:.2f}")
    if busy_ms is not None and busy_ms >= launches_ms:
        asked_ms = prediction.work.floor_ms
        asked = "" if asked_ms is None else f" where the roofline asks {number(asked_ms)}"
        idle = [f"the GPU is idle for {number(wall_ms - busy_ms)} ms"] if wall_ms - busy_ms >= NOTABLE * wall_ms else []
        causes += [f"kernels take {number(busy_ms)} ms{asked}", *idle]
    elif call_ms is not None and launches_ms >= wall_ms / 2 and wall_ms - call_ms >= NOTABLE * wall_ms:
        causes.append(f"the host is outside launch calls for {number(wall_ms - call_ms)} ms")
    if _deadlines_ms(line) >= NOTABLE * wall_ms:
        causes.append("batches waited for their deadline")
    if busy_ms is None and line["device"] != "cpu" and launches_ms < wall_ms / 2:
        causes.append("kernels slower than the roofline and gaps between them, which only a traced run tells apart")
    return causes
