"""Files of an answer: an experiment that runs the advised stack again, and a page to show."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from launchopt.errors import DataError, PackageError
from launchopt.files import save_text
from launchopt.messages import print_error
from launchopt.modes.stack import choices_of, is_preset
from launchopt.statistics.interval import FEWEST_REPEATS
from runner.advise.search import Found
from runner.auto.table import add, default_path, entries_in
from runner.calling.words import literal

GROUPS = ("workload", "model", "device")


def save(found: Found, answer: Sequence[str], folder: Path) -> list[str]:
    """Write the experiment and the page below `folder`, and add what was measured to the table of mode=auto.

    answer: its lines, for the page. Return a line for each of the two files that says what to do with it.
    """
    experiment, page = folder / "experiment" / "advice.yaml", folder / "advice.html"
    experiment.parent.mkdir(parents=True, exist_ok=True)
    save_text(experiment, experiment_text(found))
    try:
        for entry in entries_in([found.folder]):
            add(default_path(entry.work.device), [entry])
    except DataError as error:
        print_error(f"{error}: mode=auto will not know this measurement", "warning")
    lines = [f"again: launchopt run --config-dir {shlex.quote(str(folder))} experiment=advice"]
    try:
        from launchopt.report.page import page_html
        from launchopt.report.source import read_source

        save_text(page, page_html(read_source([found.folder]), answer))
    except PackageError as error:
        later = shlex.quote(str(found.folder))
        return [*lines, f"page: none, {error.problem}; then: launchopt report {later} --html"]
    except DataError as error:
        return [*lines, f"page: none, {error}"]
    return [*lines, f"page: {page}"]


def experiment_text(found: Found) -> str:
    """Return an experiment with the advised stack beside the base, as YAML. JSON is YAML."""
    settings = {key: value for key, value in found.question.settings.items() if key != "verify_budget_s"}
    settings |= {"batching.max_batch": found.batching.max_batch, "batching.timeout_us": found.batching.timeout_us}
    name, options = choices_of(found.best)
    chosen = {f"mode.{key}": value for key, value in options.items() if not is_preset(name, key, value)}
    groups = {key: settings.pop(key) for key in GROUPS if key in settings} | {"mode": name}
    nested: dict[str, object] = {}
    for key, value in (settings | chosen).items():
        outer, _, inner = key.partition(".")
        if inner:
            below = nested.setdefault(outer, {})
            assert isinstance(below, dict)
            below[inner] = value
        else:
            nested[outer] = value
    nested |= {"against": [] if found.best == found.base else [found.base], "repeats": FEWEST_REPEATS}
    lines = ["# @package _global_", "# The stack that `launchopt advise` found, beside its base.", "defaults:"]
    lines += [f"  - override /{key}: {_yaml(value)}" for key, value in groups.items()]
    lines += [f"{key}: {_yaml(value)}" for key, value in nested.items()]
    return "\n".join(lines) + "\n"


def _yaml(value: object) -> str:
    """Return a value as JSON, with texts that stay as they are: YAML joins no halves of a character."""
    return json.dumps(_literal(value), ensure_ascii=False)


def _literal(value: object) -> object:
    if isinstance(value, dict):
        return {key: _literal(each) for key, each in value.items()}
    return literal(value) if isinstance(value, str) else value
