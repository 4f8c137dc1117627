"""`--help`: the options of every group, a line per mode, a line per option of the chosen groups, and every setting.

Hydra's own page takes over a second, since it asks the config loader for the options of each group one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from importlib import resources

from hydra import compose
from omegaconf import DictConfig, OmegaConf

from launchopt.modes import MODES
from launchopt.options import help_of
from runner.config.composing import composing, group_options

EXAMPLES = """launchopt measures what GEMM launches cost, and what each strategy saves.

    launchopt run workload=gemv_micro mode=batched                       one run
    launchopt run -m mode=baseline,batched batching.max_batch=64,512     a sweep
    launchopt run mode=batched against=baseline repeats=5                two modes in turn, on the same operands
    launchopt run experiment=predecessor_tables                          a published figure, again
    launchopt report outputs/run/...                                     read the results
"""
FOOTER = """Any setting can be overridden: batching.timeout_us=300 workload.dtype=fp16 repeats=5.
--cfg job prints a composed config without running it; --hydra-help lists Hydra's own options."""


def print_help(words: Sequence[str]) -> int | None:
    """Print the help that a command line asks for and return the exit code; None where it asks for none."""
    if "--help" in words or "-h" in words:
        print(help_text([word for word in words if not word.startswith("-")]))
    elif "mode=help" in words:
        print("\n".join(["Modes: what one launch means.", *mode_lines()]))
    else:
        return None
    return 0


def help_text(overrides: Sequence[str]) -> str:
    """Return the whole page, with `overrides` composed in."""
    with composing():
        config = compose("config", list(overrides))
    lines = [EXAMPLES, "== Groups (group=option) =="]
    lines += [f"{group}: {', '.join(options)}" for group, options in group_options().items()]
    lines += ["", "== Modes: what one launch means =="]
    lines += mode_lines()
    lines += ["", "== Options, as chosen above =="]
    lines += option_lines(config)
    return "\n".join([*lines, "", "== Settings ==", OmegaConf.to_yaml(config), FOOTER])


def option_lines(config: DictConfig) -> list[str]:
    """Return a line per option of the chosen groups: its key and its help."""
    lines: dict[str, str] = {}
    for group in map(str, config):
        kind = OmegaConf.get_type(config, group)
        declared = fields(kind) if is_dataclass(kind) else ()
        lines |= {f"{group}.{each.name}": help_of(each) for each in declared if help_of(each)}
    width = max(map(len, lines))
    return [f"{key:<{width}}  {text}" for key, text in lines.items()]


def mode_lines() -> list[str]:
    """Return a line per mode, with the meaning of one of its launches."""
    width = max(map(len, MODES))
    return [f"{name:<{width}}  {_summary(name)}" for name in MODES]


def _summary(name: str) -> str:
    """Return the first line of the mode's file. It is read, not imported, since that would load compilers."""
    text = (resources.files("launchopt.modes") / f"{name}.py").read_text()
    return text.splitlines()[0].strip('"').partition(": ")[2].rstrip(".")
