"""Results of a kill campaign, and of what was measured beside it, as tables: faults, and anything lost or leaked.

A kill campaign sends signals to processes of runs and sweeps at random times. In: a `Kill` per row of
campaign.parquet, the campaign's manifest, and a `Soak` if there is one. Out: Markdown. The tables list every kill that
went wrong, with its reason. This module reads and writes no file; `runner.reliability` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from launchopt.analysis.tables.columns import FULL, NOTHING, Column, count, number
from launchopt.analysis.tables.markdown import body, escaped
from launchopt.analysis.tables.trials import facts_table, fuzz_markdown, limits_markdown, place, section
from launchopt.recording.manifest import Manifest

VICTIMS = ("consumer", "producer", "parent", "group", "tracker")
PHASES = ("interpreter", "starting", "preparing", "running", "checking", "between")  # a campaign kills in each of them
SIGNALS = ("KILL", "TERM", "HUP", "INT", "STOP CONT", "STOP KILL")
LEGEND = (
    "Each kill is a signal, at a random time, to one process of a run or sweep or to the whole group. Lost: repeats "
    "that were finished before the kill, and were gone or unreadable after the next start. Leaked: processes, shared "
    "memory, locks and temporary files that a run left when it ended in order. After a SIGKILL: those that the next "
    "start did not remove. Hung: the run did not end. Wrong: an exit code, a reason or a status that differs from the "
    "promise, or shared memory of a neighbour that was removed."
)
PHASE_LEGEND = (
    "By the phase of the kill. interpreter: Python starts, and no line of ours has run. starting: until the ring "
    "exists. preparing: operands, plans, warm-up run. running: commands move. checking: outputs and tables, until the "
    "next repeat runs. between: between two jobs of a sweep. ended: too late. Tracker: Python's process that watches "
    "shared memory."
)
CODE_LEGEND = (
    "STOP CONT: stopped, then continued; STOP KILL: stopped, then killed. Exit codes: 130, 143 and 129, the run ended "
    "in order after INT, TERM or HUP; -2, -15 and -1, the same signals came before the first line of ours; 1, the run "
    "failed and named the killed process in one line; -9, the run's own process was killed and printed nothing; 0, "
    "the run ended well, because the kill ends no run (a child ignores INT, a child without a job is replaced), or "
    "because it came too late."
)
KEPT_LEGEND = (
    "Runs that a kill ended. Seconds: from the kill until every process of the run was gone. Segments: shared memory "
    "that remained until the next start. Status: in the manifest, or of the sweep, after the next start; none: the "
    "kill came before there was one."
)
SOAK_LEGEND = (
    "Commands through ring, batcher and recorder, between two processes; each was compared with its original. Memory: "
    "resident, after the first lap / after the last / the largest."
)


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill and its consequences: a row of campaign.parquet, without the columns of its plan."""

    number: int
    victim: str
    struck: str  # phase of the run when the kill came
    exit_code: int | None
    status: str  # status in the manifest after the next start; "" without a manifest
    repeats_before: int
    repeats_after: int
    ended_s: float  # from the kill until every process had ended
    segments_until_next_start: int
    lost: int
    leaked: int
    wrong: str
    # Campaigns before 0.2 have SIGKILL alone, and lack these columns. None: not counted.
    signal: str = "KILL"
    job: str = "run"  # or sweep
    hung: int | None = None
    tracebacks: int | None = None

    @property
    def ended_the_run(self) -> bool:
        """Whether the kill ended the run. Some victims are replaced, and some kills come too late."""
        return self.exit_code != 0

    @property
    def is_bad(self) -> bool:
        """Whether something was lost, leaked, or not as promised."""
        return bool(self.lost or self.leaked or self.hung or self.tracebacks or self.wrong)


@dataclass(frozen=True, slots=True)
class Soak:
    """Measurements of scripts/soak.py."""

    started_utc: str
    records: int
    lost: int
    seconds: float
    records_per_s: float
    batches: int
    memory: Mapping[str, Mapping[str, int]]  # per process: first_bytes, last_bytes, peak_bytes
    processor: str
    environment: Manifest


@dataclass(frozen=True, slots=True)
class Line:
    """The kills of one table line."""

    name: str
    kills: Sequence[Kill]

    def total(self, of: Callable[[Kill], int]) -> int:
        """Return the sum over all kills."""
        return sum(of(kill) for kill in self.kills)

    def counted(self, of: Callable[[Kill], int | None]) -> str:
        """Return the sum over all kills, or NOTHING if one was not counted."""
        found = [of(kill) for kill in self.kills]
        return NOTHING if None in found else count(sum(each or 0 for each in found))

    def of(self, victim: str) -> str:
        """Return the number of kills of a victim."""
        return count(sum(kill.victim == victim for kill in self.kills))

    @property
    def ended(self) -> Line:
        """The kills that ended their run."""
        return Line(self.name, [kill for kill in self.kills if kill.ended_the_run])

    def seconds(self, of: Callable[[Sequence[float]], float]) -> str:
        """Return a statistic of the seconds until every process had ended."""
        return number(of([kill.ended_s for kill in self.kills])) if self.kills else NOTHING


def _with_others(known: Sequence[str], found: Iterable[str]) -> list[str]:
    """Return the known names in their order, then all others."""
    return [*known, *sorted(set(found) - set(known))]


def _lines(kills: Sequence[Kill], known: Sequence[str], of: Callable[[Kill], str]) -> list[Line]:
    """Return a line per value of `of` that occurs, and one of all kills."""
    names = _with_others(known, map(of, kills))
    each = [Line(name, mine) for name in names if (mine := [kill for kill in kills if of(kill) == name])]
    return [*each, Line("all", kills)]


def _times(what: Iterable[object]) -> str:
    """Return values with their counts, the most frequent first: `-9 (250), 0 (3)`."""
    found = sorted(Counter(map(str, what)).items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} ({times:,})" for name, times in found) or NOTHING


def _code(kill: Kill) -> str:
    return "none" if kill.exit_code is None else str(kill.exit_code)


def _name(heading: str) -> Column[Line]:
    return Column(heading, lambda line: line.name, FULL, is_text=True)


_OUTCOME: Sequence[Column[Line]] = (
    _name("signal"),
    Column("tried", lambda line: count(len(line.kills)), FULL),
    Column("exit codes", lambda line: _times(map(_code, line.kills)), FULL, is_text=True),
    Column("lost", lambda line: count(line.total(lambda kill: kill.lost)), FULL),
    Column("leaked", lambda line: count(line.total(lambda kill: kill.leaked)), FULL),
    Column("hung", lambda line: line.counted(lambda kill: kill.hung), FULL),
    Column("tracebacks", lambda line: line.counted(lambda kill: kill.tracebacks), FULL),
    Column("wrong", lambda line: count(line.total(lambda kill: bool(kill.wrong))), FULL),
)
_KEPT: Sequence[Column[Line]] = (
    _name("killed"),
    Column("runs ended", lambda line: count(len(line.kills)), FULL),
    Column("repeats finished before", lambda line: count(line.total(lambda kill: kill.repeats_before)), FULL),
    Column("kept after", lambda line: count(line.total(lambda kill: kill.repeats_after)), FULL),
    Column("seconds p50", lambda line: line.seconds(median), FULL),
    Column("seconds max", lambda line: line.seconds(max), FULL),
    Column("segments", lambda line: count(line.total(lambda kill: kill.segments_until_next_start)), FULL),
    Column("status", lambda line: _times(kill.status or "none" for kill in line.kills), FULL, is_text=True),
)


def _table(columns: Sequence[Column[Line]], lines: Sequence[Line]) -> str:
    return body(columns, [[column.cell(line) for column in columns] for line in lines])


def _victims(kills: Sequence[Kill]) -> Sequence[Column[Line]]:
    def column(victim: str) -> Column[Line]:
        return Column(escaped(victim), lambda line: line.of(victim), FULL)

    found = {kill.victim for kill in kills}
    victims = [victim for victim in _with_others(VICTIMS, found) if victim in found]
    return [_name("phase"), *map(column, victims), Column("all", lambda line: count(len(line.kills)), FULL)]


def reliability_markdown(
    kills: Sequence[Kill], about: Manifest, soak: Soak | None, fuzz: Manifest | None, limits: Manifest | None
) -> str:
    """Return all tables. `about`: the campaign's manifest; `fuzz`, `limits`: files of the scripts of these names."""
    victims = [line.ended for line in _lines(kills, VICTIMS, lambda kill: kill.victim)]
    return (
        "\n\n".join(
            [
                "### Kills",
                f"**{_headline(kills)}.** {LEGEND}",
                PHASE_LEGEND,
                _table(_victims(kills), _lines(kills, PHASES, lambda kill: kill.struck)),
                CODE_LEGEND,
                _table(_OUTCOME, _lines(kills, SIGNALS, lambda kill: kill.signal)),
                *_bad(kills),
                KEPT_LEGEND,
                _table(_KEPT, victims),
                "Where the campaign ran:",
                facts_table(_campaign_facts(about)),
                "### Hostile input",
                *section(fuzz, fuzz_markdown, "python scripts/fuzz.py folders overrides --count 1000 --json fuzz.json"),
                "### Limits of the system",
                *section(limits, limits_markdown, "python scripts/limits.py --json limits.json"),
                "### Soak",
                *_soak(soak),
            ]
        )
        + "\n"
    )


def _headline(kills: Sequence[Kill]) -> str:
    """Return the number of kills and of faults. Faults that the campaign did not count are named as such."""
    every = Line("all", kills)
    lost, leaked = (count(every.total(of)) for of in (lambda kill: kill.lost, lambda kill: kill.leaked))
    later = {"hung": every.counted(lambda kill: kill.hung), "tracebacks": every.counted(lambda kill: kill.tracebacks)}
    faults = [f"{found} {name}" for name, found in later.items() if found != NOTHING]
    wrong = count(every.total(lambda kill: bool(kill.wrong)))
    text = ", ".join([f"{len(kills):,} kills: {lost} repeats lost", f"{leaked} leaked", *faults, f"{wrong} wrong"])
    uncounted = [name for name, found in later.items() if found == NOTHING]
    return f"{text}; not counted: {', '.join(uncounted)}" if uncounted else text


def _bad(kills: Sequence[Kill]) -> list[str]:
    """Return a line for each kill that was not as promised."""
    lines = [
        f"- {kill.number}: {kill.signal} to {kill.victim} while {kill.struck}: {kill.lost} lost, {kill.leaked} leaked, "
        f"{kill.hung or 0} hung, {kill.tracebacks or 0} tracebacks; {kill.wrong}"
        for kill in kills
        if kill.is_bad
    ]
    return ["Not as promised:", "\n".join(map(escaped, lines))] if lines else []


def _campaign_facts(about: Manifest) -> dict[str, str]:
    asked = f"seed {about.get('seed', NOTHING)}, {about.get('workers', NOTHING)} runs at a time"
    return {
        "each run": str(about.get("job", NOTHING)),
        **({"each sweep": str(about["sweep"])} if "sweep" in about else {}),
        "campaign": f"{asked}, started {about.get('started_utc', NOTHING)}",
        **place(str(about.get("processor", "")), about.get("environment", {})),
    }


def _soak(soak: Soak | None) -> list[str]:
    if soak is None:
        return ["Not measured: `python scripts/soak.py --json soak.json` does it."]
    columns: Sequence[Column[Soak]] = (
        Column("commands", lambda one: count(one.records), FULL),
        Column("lost", lambda one: count(one.lost), FULL),
        Column("batches", lambda one: count(one.batches), FULL),
        Column("seconds", lambda one: number(one.seconds), FULL),
        Column("M commands/s", lambda one: number(one.records_per_s / 1e6), FULL),
        Column("consumer MB", lambda one: _memory(one.memory["consumer"]), FULL),
        Column("producer MB", lambda one: _memory(one.memory["producer"]), FULL),
    )
    facts = {"soak": f"started {soak.started_utc}", **place(soak.processor, soak.environment)}
    return [
        SOAK_LEGEND,
        body(columns, [[column.cell(soak) for column in columns]]),
        "Where it ran:",
        facts_table(facts),
    ]


def _memory(held: Mapping[str, int]) -> str:
    sizes = (held["first_bytes"], held["last_bytes"], held["peak_bytes"])
    return " / ".join(number(size / 1e6) if size else NOTHING for size in sizes)
