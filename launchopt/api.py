"""Runs and their results from Python: `launchopt.run`, `launchopt.load` and `launchopt.compare`.

    import launchopt

    result = launchopt.run(workload="decode", model="llama_3_2_1b", mode=["graph", "coalesced"])
    print(result.verdict)

This is the one module of `launchopt` that uses `runner`. It imports it within functions. A run takes place in a process
of its own: signals, logging, the working folder, the environment and Hydra's state stay as the program left them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

from launchopt.errors import ComparisonError, ConfigError, DataError, PackageError, as_typed, one_line

if TYPE_CHECKING:
    import pandas as pd

    from launchopt.analysis.comparison.outcome import Outcome
    from launchopt.analysis.conclusions import Factor, Verdict
    from launchopt.recording.manifest import Manifest
    from launchopt.recording.results import Row

Setting: TypeAlias = Union[str, int, float, bool, "os.PathLike[str]", Sequence["Setting"], None]
PAGE = ".html"


class Result:
    """The results of the run in a folder, or of all runs below a folder that has none itself.

    `print` shows a table of the modes and the verdict, and so does a notebook.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Read the folder. Raises DataError if it has no usable result. A file that is damaged in part is named."""
        from launchopt.analysis.stream_rows import without_copies
        from launchopt.files import is_there
        from launchopt.reading.unusable import forget
        from launchopt.recording import results

        forget()
        if not _path("folder", folder):
            raise DataError('""', None, "no name of a folder")
        self.folder = Path(folder).absolute()
        own = Path(folder, "summary.parquet")
        where = own if is_there(Path(folder)) and own.is_file() else Path(folder)
        self._where = where.absolute()
        self._rows: list[Row] = without_copies(results.read_summaries([where]))
        self._manifests: list[Manifest] = results.read_manifests([where])

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that ran. Of one run the base comes first, then the measured mode."""
        return tuple(dict.fromkeys(mode for rows in self._runs for mode in self._modes(rows)))

    @property
    def status(self) -> str:
        """How the run ended: ok, failed or interrupted. Of several runs: ok if all are. unknown without a manifest."""
        found = [str(each.get("status", "unknown")) for each in self._manifests] or ["unknown"]
        return next((each for each in found if each != "ok"), "ok")

    @property
    def notices(self) -> tuple[str, ...]:
        """What the run had to say: what it did not measure, or did otherwise than asked."""
        return tuple(dict.fromkeys(text for each in self._manifests for text in each.get("notices") or []))

    @cached_property
    def verdict(self) -> Verdict:
        """The factor of each mode over the base, what bounds the time, and what to try first."""
        from launchopt.analysis.conclusions import factors_of, verdict_of
        from launchopt.analysis.tables.rows import own_bases
        from launchopt.analysis.verdict.diagnosis import diagnose
        from runner.verdict import calibration_for

        refused = {str(each.get("run_id")): each.get("refused") or {} for each in self._manifests}
        factors = [one for rows in self._runs for one in factors_of(rows, self._modes(rows), str(self.folder))]
        calibration = calibration_for(self._rows, [self.folder])
        return verdict_of(factors, diagnose(self._rows, refused, calibration, own_bases(self._manifests)))

    @property
    def objective(self) -> float:
        """The number for an optimizer to minimize: the median wall time of the measured mode over that of the base.

        Without a base it is in ms. It is infinite if a repeat failed. Raises DataError if the folder has several runs.
        """
        from launchopt.analysis.conclusions import objective

        if len(self._runs) > 1:
            raise DataError(self.folder, None, f"has {len(self._runs)} runs; an objective is that of one")
        base, *others = self.modes
        return objective(self._rows, others[0], base) if others else objective(self._rows, base, None)

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each repeat of a mode; outputs/reference/COLUMNS.md explains the columns.

        Raises PackageError if pandas is not installed.
        """
        from launchopt.distribution import missing
        from launchopt.recording.results import SUMMARY

        if lacking := missing("pandas"):
            raise PackageError("to_pandas()", lacking, "pip install pandas")
        import pyarrow as pa

        names = [field for field in SUMMARY if any(field.name in row for row in self._rows)]
        return pa.Table.from_pylist(self._rows, schema=pa.schema(names)).to_pandas()

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write one HTML page that needs no other file, and return its path.

        Raises ConfigError for a name that does not end in .html, PackageError without the report extra, and DataError
        if the page cannot be written.
        """
        from launchopt.files import save_text
        from launchopt.report.page import page_html
        from launchopt.report.source import read_source

        page = Path(_path("path", path))
        if page.suffix.lower() != PAGE:
            raise ConfigError("path", path, f"the name of a page must end in {PAGE}")
        save_text(page, page_html(replace(read_source([self._where]), folders=[self.folder])))
        return page

    @cached_property
    def _runs(self) -> list[list[Row]]:
        """The rows of each run."""
        runs: dict[str, list[Row]] = {}
        for row in self._rows:
            runs.setdefault(row["run_id"], []).append(row)
        return list(runs.values())

    def _modes(self, rows: Sequence[Row]) -> list[str]:
        from launchopt.analysis.conclusions import modes_of

        config = next((each.get("config") for each in self._manifests if each.get("run_id") == rows[0]["run_id"]), None)
        return modes_of(rows, (config or {}).get("against"))

    def __repr__(self) -> str:
        from launchopt.analysis.stream_rows import counted

        runs = counted(len(self._runs), "run")
        return one_line(f"<launchopt.Result of {self.folder}: {runs} of {', '.join(self.modes)}; {self.status}>")

    def __str__(self) -> str:
        return f"{self._table()}\n{self.verdict}"

    def _repr_markdown_(self) -> str:
        return f"{self._table()}\n{self.verdict._repr_markdown_()}"

    def _table(self) -> str:
        if len(self._runs) == 1:
            from launchopt.analysis.conclusions import table_of

            return table_of(self._rows, self.modes, self.verdict.factors)
        from launchopt.analysis.tables.markdown import report_markdown
        from launchopt.analysis.tables.rows import build_tables, own_bases

        return report_markdown(build_tables(self._rows, own_bases(self._manifests)), "compact")


@dataclass(frozen=True, slots=True)
class Comparison:
    """B against A: a factor for each stream of commands, mode and configuration that both have.

    refused: pairs that are not compared, with the reason. alone: what only one of both has.
    """

    factors: tuple[Factor, ...]
    refused: tuple[str, ...]
    alone: tuple[str, ...]
    _outcome: Outcome = field(repr=False)

    @property
    def verdict(self) -> str:
        """FASTER, SLOWER, SAME or UNDECIDED, of B against A. UNDECIDED if pairs have different verdicts."""
        found = {one.verdict for one in self.factors}
        return found.pop() if len(found) == 1 else "UNDECIDED"

    def __str__(self) -> str:
        refused, alone = (f"refused: {text}" for text in self.refused), (f"not compared, {text}" for text in self.alone)
        return "\n".join(map(one_line, [*self.factors, *refused, *alone]))

    def _repr_markdown_(self) -> str:
        from launchopt.analysis.comparison.text import markdown

        return markdown(self._outcome)


def run(
    settings: Mapping[str, Setting] | None = None,
    /,
    *,
    folder: str | os.PathLike[str] | None = None,
    quiet: bool = False,
    **groups: Setting,
) -> Result:
    """Run one experiment, as `launchopt run` does, and return its results.

    settings: by the names of the command line, such as {"workload.requests": 16}. groups: the same for names without a
    dot, such as workload="decode". Of a list of modes the first is the base, and the second is the measured one.
    folder: of the results; by default a new one below outputs/run. quiet: show no progress, warnings and notices.

    Raises a LaunchoptError: ConfigError for a setting that cannot work, RunError for a run that broke, and others. On
    Ctrl-C the run finishes its repeat, keeps what was measured, and KeyboardInterrupt says where it is.
    """
    from runner.calling.caller import call, show
    from runner.calling.words import words_of

    if settings is not None and not isinstance(settings, Mapping):
        raise ConfigError("settings", settings, 'a dictionary, such as {"workload.requests": 16}')
    if folder is not None and not _path("folder", folder):
        raise ConfigError("folder", folder, "the name of a folder; without one the results are below outputs/run")
    given = dict(settings or {})
    if twice := given.keys() & groups.keys():
        name = min(twice)
        raise ConfigError(name, groups[name], f"is given twice, and was {given[name]}")
    result = Result(call(words_of(given | groups, None if folder is None else Path(folder)), is_quiet=quiet))
    if not quiet:
        show("".join(f"{one_line(notice)}\n" for notice in result.notices))
    return result


def load(folder: str | os.PathLike[str]) -> Result:
    """Return the results of the run in a folder, or of all runs below a folder that has none itself.

    Raises DataError if the folder does not exist, or has no usable result.
    """
    return Result(folder)


def compare(
    a: Result | str | os.PathLike[str],
    b: Result | str | os.PathLike[str],
    *,
    metric: str | None = None,
    effect: float = 0.01,
    force: bool = False,
) -> Comparison:
    """Judge B against A, as `launchopt compare A B` does.

    a, b: results, folders, or "FOLDER:MODE". metric: a column of the summary. effect: the smallest difference that
    matters. force: compare also other work and other machines.

    Raises ConfigError or DataError for a side that cannot be read, ComparisonError if nothing can be compared.
    """
    from launchopt.analysis.conclusions import factor_between
    from runner.compare import compared, share

    if not isinstance(metric, str | None):
        raise ConfigError("metric", metric, "the name of a column, such as wall_ms")
    ours, theirs = (
        str(each.folder) if isinstance(each, Result) else _path(name, each) for name, each in (("a", a), ("b", b))
    )
    try:
        outcome = compared(ours, theirs, metric, share(as_typed(effect)), force=force)
    except ConfigError as error:
        if not error.key.startswith("--"):
            raise
        name = error.key.removeprefix("--")
        raise ConfigError(name, error.value, error.allowed.replace(f"{error.key} ", f"{name}=")) from None
    if outcome.refused and not outcome.comparisons:
        raise ComparisonError(outcome.refused[0])
    factors = tuple(factor_between(one) for one in outcome.comparisons)
    return Comparison(factors, tuple(outcome.refused), tuple(outcome.alone), outcome)


def _path(name: str, value: object) -> str:
    """Return a path as text; ConfigError for a value of another type."""
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(name, repr(value), "allowed: the path of a file or folder, as text or pathlib.Path")
    return str(os.fspath(value))
