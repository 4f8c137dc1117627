"""Diagnosis of a stream of commands: the bottleneck of each mode, the possible gain, and the strategy to try first.

In: rows as `results.read_summaries` gives them, the modes that refused the work, by run, and the calibration of the
device, if any. Out: a `Diagnosis` per stream, with a `DiagnosedLine` per mode and configuration. Pure: reads no file,
prints nothing.

    diagnose(read_summaries([Path("outputs/reference/gpu/strategies")]), {}, None)[0].sentence

Times are those of untraced runs; traced runs give kernels and GPU busy. A line with a failed or unverified repeat gets
no verdict. A rate above a measured ceiling without an explanation is an error, and comes first. `bound` has the rules,
`roofline` the arithmetic, `evidence` the numbers, `first_strategy` the choice, `sentence` the words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from launchopt.analysis.line_names import named
from launchopt.analysis.several_gpus import is_on_several
from launchopt.analysis.stream_rows import STREAM, digits, stream_subtitle, stream_title
from launchopt.analysis.tables.rows import Line, build_tables
from launchopt.analysis.tables.strategies import StrategyLine, StrategyTable, build_strategies
from launchopt.analysis.verdict.bound import Bound, Shares, Side, classify
from launchopt.analysis.verdict.calibration import Calibration
from launchopt.analysis.verdict.evidence import evidence_of, shares_of
from launchopt.analysis.verdict.first_strategy import Judged, first_to_try
from launchopt.analysis.verdict.roofline import impossible, predict
from launchopt.analysis.verdict.sentence import name_of, sentence
from launchopt.recording.results import Row
from launchopt.statistics.interval import Interval


@dataclass(frozen=True, slots=True)
class DiagnosedLine:
    """One mode in one configuration: measured and predicted time, its bottleneck, and the evidence in numbers.

    The predicted time is the larger of `bytes_ms` (packing included) and `flops_ms`, plus `launch_ms`. `headroom`: the
    speed-up at the roofline without launches. `kernel_headroom`: the speed-up without gaps between the kernels that
    ran. None: unknown.
    """

    mode: str
    measured_ms: float | None
    predicted_ms: float | None
    bytes_ms: float | None
    flops_ms: float | None
    launch_ms: float | None
    bound: str
    evidence: list[str] = field(default_factory=list)
    headroom: float | None = None
    speedup: Interval | None = None
    side: str = ""
    configuration: str = ""
    run_id: str = ""
    launch_cost: str | None = None  # source of the cost of a launch
    all_bytes_ms: float | None = None  # bytes if every command read its own operands from memory
    kernel_headroom: float | None = None
    speedup_metric: str | None = None
    disorder: str | None = None  # `dependencies ignored`; None: the order was kept
    name: str = ""  # the mode, with what tells it from other lines of its mode


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A stream of commands: the verdict in words, and a line per mode."""

    title: str
    subtitle: str
    sentence: str
    lines: list[DiagnosedLine]
    first_to_try: str | None
    evidence: list[str]  # facts about the line that the sentence describes
    errors: list[str] = field(default_factory=list)  # rates above a ceiling that nothing explains


def diagnose(
    rows: Iterable[Row],
    refusals: Mapping[str, Mapping[str, str]],
    calibration: Calibration | None,
    own: Mapping[str, Sequence[str]] | None = None,
) -> list[Diagnosis]:
    """Return a diagnosis per stream of commands; streams that only ran under a tracer come last.

    own: what `own_bases` returns. Raises DataError if two different rows claim to be the same repeat.
    """
    kept = [row for row in rows if not is_on_several(row)]  # `several_gpus` has lines on these
    tables = build_strategies(kept, refusals, own)
    headline = {_stream(table.stream) for table in tables}
    traced = [
        table
        for table in build_tables((row for row in kept if row["traced"]), own)
        if _stream(table.lines[0].rows[0]) not in headline
    ]
    return [
        *(_diagnosis(table, calibration) for table in tables),
        *(_only_traced(table.title, table.subtitle, table.lines) for table in traced),
    ]


def _stream(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in STREAM if name != "traced")


def _diagnosis(table: StrategyTable, calibration: Calibration | None) -> Diagnosis:
    judged = [_judge(strategy, table.strategies, calibration) for strategy in table.strategies]
    errors = [f"{name_of(each, judged)}: {why}" for each in judged if (why := _impossible(each.strategy.line))]
    choice = first_to_try(judged, table.refused)
    return Diagnosis(
        stream_title(table.stream),
        stream_subtitle(table.stream),
        sentence(judged, choice, errors),
        [_line(each, name_of(each, judged)) for each in judged],
        choice.mode if choice else None,
        judged[0].evidence,
        errors,
    )


def _judge(strategy: StrategyLine, others: list[StrategyLine], calibration: Calibration | None) -> Judged:
    prediction = predict(strategy, calibration)
    if why := _impossible(strategy.line):
        return Judged(strategy, prediction, Bound.IMPOSSIBLE, Side.ONLY, [why], Shares())
    if strategy.line.problem is not None:
        return Judged(
            strategy, prediction, Bound.NO_VERDICT, Side.ONLY, [" ".join(strategy.line.problem.split())], Shares()
        )
    shares = shares_of(strategy, prediction, _saved(strategy, others))
    return Judged(strategy, prediction, *classify(shares), evidence_of(strategy, prediction), shares)


def _impossible(line: Line) -> str | None:
    return next((why for row in line.rows if (why := impossible(row))), None)


def _saved(strategy: StrategyLine, others: list[StrategyLine]) -> float | None:
    """Return the share of its wall time that the fastest verified line saved with at most half as many launch calls."""
    wall_ms, calls = strategy.line.median("wall_ms"), strategy.line.median("launch_calls")
    if not wall_ms or not calls:
        return None
    times = [
        time_ms
        for other in others
        if other.line.problem is None and (other.line.median("launch_calls") or calls) <= calls / 2
        if (time_ms := other.line.median("wall_ms")) is not None
    ]
    return 1 - min(times) / wall_ms if times else None


def _line(judged: Judged, name: str) -> DiagnosedLine:
    prediction, line, is_sound = judged.prediction, judged.strategy.line, judged.is_sound
    work, launches = prediction.work, prediction.launches
    return DiagnosedLine(
        mode=line["mode"],
        measured_ms=prediction.measured_ms,
        predicted_ms=prediction.total_ms if is_sound else None,
        bytes_ms=work.moved_ms,
        flops_ms=work.flops_ms,
        launch_ms=launches.total_ms if launches and is_sound else None,
        bound=judged.bound.value,
        evidence=judged.evidence,
        headroom=judged.headroom,
        speedup=line.speedup,
        side=judged.side.value,
        configuration=line.configuration,
        run_id=line["run_id"],
        launch_cost=launches.source if launches and is_sound else None,
        all_bytes_ms=work.all_bytes_ms,
        kernel_headroom=judged.kernel_headroom,
        speedup_metric=None if line.speedup is None else line.metric,
        disorder=line.disorder,
        name=name,
    )


def _only_traced(title: str, subtitle: str, lines: list[Line]) -> Diagnosis:
    shown = []
    for line in lines:
        counts = [("kernels", line.median("kernels"), ""), ("GPU busy", line.median("gpu_busy_ms"), " ms")]
        facts = [f"{name}: {digits(value)}{unit}" for name, value, unit in counts if value is not None]
        name = named(line, lines)
        shown.append(
            DiagnosedLine(line["mode"], None, None, None, None, None, Bound.NO_VERDICT.value, facts, name=name)
        )
    words = "No verdict: only traced runs of this work, and a tracer's times are no headline times. Run it untraced."
    return Diagnosis(title, subtitle, words, shown, None, [])
