"""`launchopt run --help`: a line per mode, and a line per setting with its value, meaning, unit and range.

Hydra's own page takes over a second, since it asks the config loader for the options of each group one by one.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from importlib import resources
from typing import NamedTuple, get_type_hints

from hydra import compose
from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig, ListConfig, OmegaConf

from launchopt.errors import as_typed
from launchopt.modes import MODES, OWN_MODES
from launchopt.options import Limits
from launchopt.plugins.found import plugins
from runner.config.composing import group_options
from runner.config.loading import hydra_of
from runner.config.model_files import GROUP, OR_PATH
from runner.config.tables import experiments
from runner.config.typed.names import value_names

MOST_COLUMNS = 100
TEXT_COLUMN = 32  # column in which the meaning of a setting begins
UNITS = {"_per_s": "1/s", "_us": "us", "_ms": "ms", "_s": "s"}  # by the end of a setting's name
EXAMPLES = """usage: launchopt run [SETTING=VALUE ...] [-m] [--config-dir DIR]

Runs an experiment, or a sweep of them, and writes the results as Parquet.

    launchopt run workload=gemv_micro mode=batched                     one run
    launchopt run -m mode=baseline,batched batching.max_batch=64,512   a sweep
    launchopt run mode=batched against=baseline repeats=5              two modes in turn
    launchopt run experiment=gpu_kernel_batcher                        a published figure, again
    launchopt report outputs/run/...                                   read the results
"""
FOOTER = """Options:
  -m                run a sweep: KEY=A,B runs a job for each value
  --cfg job         print the composed settings, and run nothing
  --config-dir DIR  add your own options: DIR/GROUP/NAME.yaml is GROUP=NAME
  --version         print the version
  --hydra-help      list the options of Hydra"""


class Setting(NamedTuple):
    """One setting of a composed config: its key, its value as text, its meaning, and its values if they have names."""

    key: str
    value: str
    meaning: str
    values: tuple[str, ...]


def print_help(words: Sequence[str]) -> int | None:
    """Print the help that a command line asks for and return the exit code; None if it asks for none."""
    if "--help" in words or "-h" in words:
        options = get_args_parser().parse_args(list(words))
        print(help_text(options.overrides, options.config_dir))
    elif "mode=help" in words:
        print("\n".join(["Modes: what one launch means.", *mode_lines()]))
    else:
        return None
    return 0


def help_text(overrides: Sequence[str], config_dir: str | None = None) -> str:
    """Return the whole page, with `overrides` composed in. config_dir: a folder with options of the user."""
    config = composed(overrides, config_dir)
    columns = min(shutil.get_terminal_size((MOST_COLUMNS, 24)).columns, MOST_COLUMNS)
    lines = [EXAMPLES, *_wrapped("  ", mode_lines(), columns, "Modes (mode=NAME): what one launch means")]
    lines += ["", "Settings, with the value that a run takes without one:"]
    above = ""
    options = group_options(config_dir)
    for setting in settings(config):
        group = setting.key.partition(".")[0] if "." in setting.key else ""
        if group != above or not above:
            if group != above:
                lines.append("")
            if group in options:
                names = [*options.pop(group), *[OR_PATH] * (group == GROUP)]
                lines += _folded(f"{group}: ", ", ".join(names), columns)
            above = group
        lines += _folded(f"  {setting.key}={setting.value}".ljust(TEXT_COLUMN) + "  ", setting.meaning, columns)
    lines.append("")
    for group, names in options.items():
        lines += _folded(f"{group}: ", ", ".join(names), columns)
    lines += ["", "Experiments (experiment=NAME), with what they need:"]
    for name, text in experiments().items():
        lines += _folded(f"  {name}: ", text, columns)
    return "\n".join([*lines, "", FOOTER])


def composed(overrides: Sequence[str], config_dir: str | None = None) -> DictConfig:
    """Return the composed config, as a run has it."""
    with hydra_of(config_dir=config_dir):
        return compose("config", list(overrides))


def settings(config: DictConfig) -> Iterator[Setting]:
    """Yield every setting of a composed config: those of the groups, then those outside of groups."""
    root = OmegaConf.get_type(config)
    groups = [str(key) for key in config if isinstance(config._get_node(key), DictConfig)]
    for group in groups:
        yield from _declared(config[group], OmegaConf.get_type(config, group), f"{group}.")
    yield from _declared(config, root, "", set(groups))


def _declared(
    config: DictConfig, kind: type | None, above: str, left_out: Sequence[str] | set[str] = ()
) -> Iterator[Setting]:
    if kind is None or not is_dataclass(kind):
        return
    types = get_type_hints(kind)
    for each in fields(kind):
        text, limits = each.metadata.get("help"), each.metadata.get("limits", Limits())
        if not text or each.name in left_out:
            continue
        hint = types[each.name]
        names = value_names(hint, each)
        unit = next((unit for end, unit in UNITS.items() if each.name.endswith(end)), "")
        of = "" if hint is bool or limits.choices else " | ".join(names)
        notes = [note for note in (unit, of, str(limits)) if note]
        value = "???" if OmegaConf.is_missing(config, each.name) else _text(config[each.name])
        yield Setting(above + each.name, value, f"{text} ({', '.join(notes)})" if notes else text, names)


def _text(value: object) -> str:
    """Return a value as a user types it."""
    return as_typed(OmegaConf.to_container(value) if isinstance(value, ListConfig) else value)


def _wrapped(indent: str, lines: Sequence[str], columns: int, title: str) -> list[str]:
    width = max(map(len, MODES))
    return [
        f"{title}:",
        *(part for line in lines for part in _folded(indent + line[: width + 2], line[width + 2 :], columns)),
    ]


def _folded(head: str, text: str, columns: int) -> list[str]:
    """Return `head` and `text` in lines of at most `columns`; further lines are indented as the text is."""
    hang = " " * min(len(head), TEXT_COLUMN + 2)
    return textwrap.wrap(
        head + text,
        columns,
        subsequent_indent=hang,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )


def mode_lines() -> list[str]:
    """Return a line per mode, with the meaning of one of its launches."""
    width = max(map(len, MODES))
    auto = f"{'auto':<{width}}  one of these, by measurements of this machine (launchopt tune)"
    return [auto, *(f"{name:<{width}}  {_summary(name)}" for name in MODES)]


def _summary(name: str) -> str:
    """Return the first line of the mode's file, or the summary of a plugin's package.

    Neither is imported, since that would load compilers.
    """
    if name not in OWN_MODES:
        found = [each for each in plugins() if (each.group, each.name) == ("mode", name)]
        return "; ".join(f"of {each.label}: {each.summary}".rstrip(": .") for each in found)
    text = (resources.files("launchopt.modes") / f"{name}.py").read_text("utf-8")
    return text.splitlines()[0].strip('"').partition(": ")[2].rstrip(".")
