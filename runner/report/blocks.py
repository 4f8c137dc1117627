"""Measured tables inside a page: the text between the marks of a folder or a file, and where its figures come from.

In: a README or another page, and the results that its marks name. Out: the page with current tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from launchopt.analysis.frontier.markdown import frontier_markdown
from launchopt.analysis.tables.markdown import report_markdown, sync_blocks
from launchopt.analysis.tables.rows import build_tables, own_bases
from launchopt.analysis.tables.strategies_markdown import strategies_markdown
from launchopt.analysis.verdict.calibration import calibration_markdown, read_calibration
from launchopt.recording import results
from runner.bench import account, figures
from runner.config.typed.renamed import current_word
from runner.profiles import ncu
from runner.provenance import sentences
from runner.reading import read_page, save_page
from runner.report import (
    advice,
    advised,
    goals,
    kernel_times,
    profilers,
    several_gpus,
    step_goals,
    waterfall,
    weight_goals,
    which_strategy,
)
from runner.report.tables import FRONTIER_FILE, STRATEGIES_FILE, frontiers_of, read_slo, strategy_tables

FILES: Mapping[str, Callable[[Path], str]] = {
    each.FILE: each.markdown
    for each in (advice, advised, goals, kernel_times, several_gpus, step_goals, weight_goals, which_strategy)
}
STRATEGIES_EXPERIMENTS = {"experiment=strategies", "experiment=qkv"}


def sync_readme(readme: Path, *, check: bool = False) -> bool:
    """Refresh the tables inside `readme`, or only compare with `check`. Return whether they are current afterwards.

    Raises DataError for a README or a folder that cannot be read, and for markers that do not pair up.
    """
    old = read_page(readme)
    from runner.matrix import MARKS, sync_matrix  # imports Hydra and the workloads, which other reports do not need

    new = sync_matrix(old, readme)
    if MARKS[0] not in old or "<!-- report:" in old:
        new = sync_blocks(new, readme, lambda name: _measured_block(readme.parent / name))
    return save_page(readme, old, new, check=check)


def _measured_block(folder: Path) -> str:
    """Return the Markdown of `folder`, and below it the sentence that says where it comes from."""
    block = _block(folder).rstrip()  # first: it names a folder that does not exist
    where = sentences.short_line(folder) if folder.name == advice.FILE else sentences.line([folder])
    return f"{block}\n\n{where}"


def _block(folder: Path) -> str:
    """Return the Markdown of `folder`, or of a file: advice, goals, fastest modes by requests, a calibration."""
    if (named := FILES.get(folder.name)) is not None:
        return named(folder)
    if folder.is_file():
        return calibration_markdown(read_calibration(folder))
    if any(folder.rglob(profilers.AGREEMENTS)):
        return profilers.markdown(folder)
    if (folder / account.FILE).is_file():
        return account.markdown(folder)
    if ncu.profiles(folder):
        return ncu.markdown(folder)
    if (folder / "bench.parquet").is_file():
        return figures.markdown(folder)
    if waterfall.is_waterfall(folder):
        return waterfall.compact(folder)
    if (folder / FRONTIER_FILE).is_file():
        return frontier_markdown(frontiers_of([folder], read_slo(folder / FRONTIER_FILE)), "compact")
    if _compares_strategies(folder):
        return strategies_markdown(strategy_tables([folder]), "compact")
    own = own_bases(results.read_manifests([folder]))
    return report_markdown(build_tables(results.read_summaries([folder]), own), "compact")


def _compares_strategies(folder: Path) -> bool:
    """Return whether results at and below a folder have a report of all modes, or an experiment that compares them."""
    if any(any(folder.rglob(name)) for name in (STRATEGIES_FILE, "remedies.md")):  # the second: of version 0.1
        return True
    overrides = (map(current_word, each.get("overrides", [])) for each in results.read_manifests([folder]))
    return any(STRATEGIES_EXPERIMENTS & set(each) for each in overrides)
