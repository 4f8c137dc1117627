"""Whether a command of reference_parts.py would be accepted, without running it.

Settings of a run are composed and checked as the run does before it plans. Other commands parse their options. So a
name that changed is found, but not a mode that a GPU cannot run.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from launchopt.errors import LaunchoptError, one_line
from runner.commands import SUBCOMMANDS
from runner.config.loading import hydra_of
from runner.config.objects import to_config
from scripts import side_by_side
from scripts.reference_part import Part, words_of

ROOT = Path(__file__).parents[1]
LAUNCHER = "hydra/launcher="
SIDE_BY_SIDE = "scripts.side_by_side"
ENVIRONMENT = re.compile(r"[A-Z_]+=")


def check(parts: Sequence[Part]) -> int:
    """Compose every command of the parts, and name those with a mistake. Return the number of such parts."""
    places = {"folder": "outputs/new", "scratch": "scratch", "trace": "trace"}
    wrong = 0
    for part in parts:
        found = [why for command in part.commands if (why := mistake(words_of(command, places)))]
        wrong += bool(found)
        print(f"{part.folder}: {'; '.join(found) or 'ok'}")
    return wrong


def mistake(words: Sequence[str]) -> str:
    """Return why a command would be refused, or nothing."""
    given = list(words)
    if given[0] == "env":
        given = given[1:]
        while ENVIRONMENT.match(given[0]):
            given = given[1:]
    if given[0] == "bash":
        return _of_run(given[2:]) if (ROOT / given[1]).is_file() else f"{given[1]}: no such script"
    module, others = given[2], given[3:]
    if module == SIDE_BY_SIDE:
        asked = side_by_side.parser().parsed(others)
        return "; ".join(filter(None, (mistake(side_by_side.parsed(text).words) for text in asked.commands)))
    if module != "runner":
        return _of_options(module, others)
    if others[0] in SUBCOMMANDS:
        return _of_options(SUBCOMMANDS[others[0]].module, others[1:])
    return _of_run(others)


def _of_run(settings: Sequence[str]) -> str:
    try:
        with hydra_of():
            to_config(compose("config", overrides=_first_job(settings)))
    except (LaunchoptError, HydraException, OmegaConfBaseException) as error:
        return one_line(str(error))
    return ""


def _first_job(settings: Sequence[str]) -> list[str]:
    """Return the settings of the first job of a sweep, or those of a run."""
    if settings[0] != "-m":
        return list(settings)
    words = _without_absent_launcher(settings[1:])
    found = OverridesParser.create().parse_overrides(words)
    return [
        f"{each.get_key_element()}={next(each.sweep_string_iterator())}" if each.is_sweep_override() else text
        for each, text in zip(found, words, strict=True)
    ]


def _without_absent_launcher(settings: Sequence[str]) -> list[str]:
    """Return the settings without those of a launcher whose package is not installed here."""
    name = next((each.removeprefix(LAUNCHER) for each in settings if each.startswith(LAUNCHER)), "basic")
    if name == "basic" or find_spec(f"hydra_plugins.hydra_{name.partition('_')[0]}_launcher"):
        return list(settings)
    return [each for each in settings if "hydra.launcher." not in each and not each.startswith(LAUNCHER)]


def _of_options(module: str, words: Sequence[str]) -> str:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            import_module(module)._parser().parsed(words)
    except ImportError:
        return f"{module}: no such program"
    except SystemExit:
        return said.getvalue().splitlines()[0]
    return ""
