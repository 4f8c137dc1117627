"""The answer in five lines: where the time goes, what to do, what it gains, what it costs once, and what to set."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from launchopt.analysis.stream_rows import counted, digits, timeout
from launchopt.analysis.submits import submit_ms, submits
from launchopt.analysis.tables.columns import number, three_digits
from launchopt.analysis.verdict.bound import Bound
from launchopt.analysis.verdict.calibration import Calibration
from launchopt.analysis.verdict.diagnosis import diagnose
from launchopt.errors import one_line
from launchopt.modes.stack import choices_of, stack_of
from launchopt.recording.results import Row
from launchopt.stack import PDL, Fusion, Stack, Submit
from launchopt.statistics.interval import Verdict
from runner.advise.halving import Decision, factor_of, wall_ms
from runner.advise.search import Found

# Choice of a stack -> the switches of vLLM, SGLang and TensorRT-LLM (docs/which-strategy.md). Without graphs
# each engine fuses as its own kernels do, since -O2 and --enable-torch-compile bring graphs.
SWITCHES: dict[str, tuple[str, str, str]] = {
    "coalesce": ("--max-num-seqs {batch}", "--max-running-requests {batch}", "max_batch_size={batch}"),
    "graph": (
        "graphs are on by default",
        "--cuda-graph-max-bs {batch}",
        "cuda_graph_config={{max_batch_size: {batch}}}",
    ),
    "eager": ("--enforce-eager", "--disable-cuda-graph", "cuda_graph_config=null"),
    "fused": ("-O2", "--enable-torch-compile", "torch_compile_config={{enable_fullgraph: true}}"),
    PDL: ("no switch for pdl", "no switch for pdl", "TRTLLM_ENABLE_PDL=1"),
}
ENGINES = ("vLLM", "SGLang", "TensorRT-LLM")
UNKNOWN = {Bound.UNDECIDED, Bound.NO_VERDICT}
GRAPHS = {Submit.graph, Submit.graph_loop, Submit.graph_device}


def lines_of(found: Found, calibration: Calibration | None = None, others: str = "") -> list[str]:
    """Return the five lines. calibration: of the GPU, for what bounds the base. others: why other stacks cannot run."""
    now = _now(found) + _bound(found, calibration)
    return [one_line(line, 1000) for line in (now, _do(found, others), _gain(found), _once(found), _set(found))]


def _median(rows: Sequence[Row], column: str) -> float | None:
    values = [row[column] for row in rows]
    return None if None in values or not values else float(statistics.median(values))


def _now(found: Found) -> str:
    rows = found.arms[found.base]
    wall, calls, times = wall_ms(rows), _median(rows, "launch_calls"), [*map(submit_ms, rows)]
    ran, all_layers = rows[0]["layers"], found.layers or 0
    is_cut = bool(ran and ran < all_layers)
    text = f"now: {found.base} takes {number(wall)} ms"
    text += f" with {ran} of {counted(all_layers, 'layer')}" * is_cut + _tokens_of(rows[0]) + _modelled(rows[0])
    if (tpot := _median(rows, "tpot_p50_ms")) is not None:
        text += f", p50 TPOT {number(tpot * all_layers / ran if is_cut else tpot)} ms" + " for all layers" * is_cut
    if calls and None not in times:
        share = min(1.0, statistics.median(each for each in times if each is not None) / wall)
        launches = statistics.median(each for each in map(submits, rows) if each is not None)
        several = f" in {launches:,.0f} launches" if launches < calls else ""
        text += f"; launch calls take {share:.0%} of it ({calls:,.0f} calls{several})"
    return text


def _tokens_of(row: Row) -> str:
    """Return how many tokens a request has; nothing for work without requests."""
    if row["tokens"] is None or not row["requests"]:
        return ""
    return f" for {counted(round(row['tokens'] / row['requests']), 'token')} of each request"


def _modelled(row: Row) -> str:
    """Return what ran of a model with experts, and how weights were stored; nothing for other work."""
    stored = "" if row["weights"] is None else ", with {} weights{}{}".format(*str(row["weights"]).partition(" "))
    if row["expert_routing"] is None:
        return stored
    steps = f"{counted(row['steps'], 'step')} of {counted(row['step_tokens'], 'token')}"
    experts = f"{row['experts_per_token']} of {row['experts']} experts a token"
    return f" for {steps} through the experts of one layer ({experts}), without attention or a shared expert{stored}"


def _bound(found: Found, calibration: Calibration | None) -> str:
    """Return what bounds the base, and what no strategy can gain beyond."""
    diagnoses = diagnose([row for rows in found.arms.values() for row in rows], {}, calibration)
    for line in (line for one in diagnoses for line in one.lines if line.mode == found.base):
        headroom = f", at most {three_digits(line.headroom)}x to gain up to the roofline" if line.headroom else ""
        return "" if line.bound in UNKNOWN else f"; {line.bound}{headroom}"
    return ""


def _do(found: Found, others: str) -> str:
    batching, limit = found.batching, found.question.limit
    text = f"mode={found.best} batching.max_batch={batching.max_batch}"
    text += f" batching.timeout_us={timeout(batching.timeout_us)}"
    text = (
        f"do: {text}"
        if _is_proven(found)
        else f"do: keep {found.base}; the fastest so far, not proven to be faster: {text}"
    )
    if found.is_lone:
        failed = f" and passes its check ({', '.join(found.failed)} did not)" if found.failed else ""
        text = (
            f"do: nothing to compare, {found.base} alone runs here{failed}{f'; of the others {others}' * bool(others)}"
        )
    elif len(found.arms) == 1:
        text = f"do: nothing yet, {found.base} alone ran in time{_again(found)}"
    elif not batching.tried:
        text += " (no time to try another batching)"
    elif batching.gain != 1:
        text += f" ({three_digits(batching.gain)}x as fast as the default batching, in one sweep)"
    if limit is None:
        return text
    reached = batching.kept_ms or limit.ms(found.arms[found.best], found.layers)
    if batching.kept_ms or found.best in found.fits:
        return f"{text}; {limit.name} {number(reached)} ms, within {digits(limit.most_ms)}"
    most = digits(limit.most_ms)
    return f"{text}; nothing tried keeps {limit.name} within {most} ms: {number(reached)} ms is the closest"


def _is_proven(found: Found) -> bool:
    """Return whether the best stack is faster than the base, or is the base, or alone keeps the limit."""
    if found.best == found.base or (found.best in found.fits and found.base not in found.fits):
        return True
    factor = factor_of(found.arms, found.base, found.best)
    return factor is not None and factor.verdict == Verdict.FASTER


def _gain(found: Found) -> str:
    if found.is_lone:
        return "gain: none to measure"
    if len(found.arms) == 1:
        return f"gain: unknown, {found.base} alone ran in time"
    if found.best == found.base:
        return f"gain: none, {found.base} is the best of {len(found.arms)} in the last round; {_certainty(found)}"
    factor = factor_of(found.arms, found.base, found.best)
    if factor is None:
        return f"gain: {found.best} and {found.base} cannot be compared"
    doubt = "" if factor.low is None or factor.verdict == Verdict.FASTER else ", so it may be none"
    if factor.verdict == Verdict.SLOWER:
        doubt = ", so it is slower" + ("" if found.base in found.fits else f"; {found.base} does not keep the limit")
    return f"gain: {factor.shown} as fast as {found.base}{doubt}; {_certainty(found)}"


def _certainty(found: Found) -> str:
    """Return how sure the best arm is."""
    is_open = found.decision is Decision.open
    if is_open and found.enough_s is None:
        ran = len(found.arms[found.best])
        return f"{found.decision.value} after {ran} repeats; stop other programs, and type the same"
    lacks_time = is_open or found.decision in (Decision.unknown, Decision.left_out)
    return f"{found.decision.value}{_again(found) if lacks_time else ''}"


def _again(found: Found) -> str:
    """Return what to type for an interval."""
    return f"; type the same with --budget-s {found.enough_s:g}" if found.enough_s else "; give a larger --budget-s"


def _once(found: Found) -> str:
    own, base = (_median(found.arms[label], "setup_ms") for label in (found.best, found.base))
    if own is None or base is None:
        return "once: the setup was not timed"
    text, saved = f"once: {number(own)} ms of setup, {number(base)} ms for {found.base}", _saved(found)
    if own > base and saved > 0:
        text += f"; repaid after {(own - base) / saved:,.0f} runs of {number(wall_ms(found.arms[found.base]))} ms"
    return text


def _saved(found: Found) -> float:
    return wall_ms(found.arms[found.base]) - wall_ms(found.arms[found.best])


def _set(found: Found) -> str:
    if found.arms[found.base][0]["device"] == "cpu":
        return "set: nothing, since times on a CPU say nothing about an engine on a GPU"
    if len(found.arms) == 1:
        return "set: nothing" if found.is_lone else "set: nothing yet"
    if not _is_proven(found):
        return "set: nothing yet, since no gain is proven"
    stack = stack_of(*choices_of(found.best))
    if stack.submit in (Submit.megakernel, Submit.persistent):
        return f"set: no engine has a switch for {stack.submit}"
    if found.question.is_of_experts:
        if stack.submit not in GRAPHS:
            return "set: nothing in vLLM, SGLang or TensorRT-LLM, which launch the GEMMs of all experts together"
        return _switches(["graph", *([PDL] if stack.pdl else [])], int(str(found.question.settings["workload.tokens"])))
    if not stack.coalesce:
        return (
            f"set: nothing in vLLM, SGLang or TensorRT-LLM, which coalesce always: {found.best} is for other programs"
        )
    if found.question.requests:
        return _switches(_names(stack), found.batching.max_batch)
    return f"{_switches(_names(stack), 'N')}; N: your requests side by side"


def _switches(names: Sequence[str], batch: int | str) -> str:
    """Return the line with the switches of each engine for some choices. batch: requests side by side, or its name."""
    chosen = [SWITCHES[name] for name in names]
    engines = ", ".join
    texts = (engines(each[at].format(batch=batch) for each in chosen) for at in range(len(ENGINES)))
    return "set: " + "; ".join(f"{engine} {text}" for engine, text in zip(ENGINES, texts, strict=True))


def _names(stack: Stack) -> list[str]:
    names = ["coalesce"]
    if stack.submit in GRAPHS:
        names += ["graph", *["fused"] * bool(stack.fuse & {Fusion.norm, Fusion.rope_kv, Fusion.silu})]
    else:
        names += ["eager"]
    return names + ([PDL] if stack.pdl else [])
