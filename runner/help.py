"""`--help`: every group with its options, every setting with its value, and a line a mode on what one launch means.

Hydra's own page asks its config loader for the options of each group, one by one, and takes over a second; the
options are the YAML files, so they are listed from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from hydra import compose, initialize_config_dir, initialize_config_module
from omegaconf import OmegaConf

from launchopt.modes import MODES

EXAMPLES = """launchopt measures what GEMM launches cost, and what each remedy saves.

  python -m runner workload=gemv_micro mode=batched                       one run
  python -m runner -m mode=baseline,batched batching.max_batch=64,512     a sweep
  python -m runner mode=batched against=[baseline] repeats=5              two modes in turn, on the same operands
  python -m runner experiment=predecessor_tables                          a published figure, again
  python -m runner.report outputs/run/...                                 read what landed
"""
FOOTER = """Any setting can be overridden: batching.timeout_us=300 workload.dtype=fp16 repeats=5.
--cfg job prints a composed config without running it; --hydra-help lists Hydra's own options."""


def conf_folder() -> Path | None:
    """The checkout's conf/, where this is a checkout (or installed from one, editable)."""
    folder = Path(__file__).parent.parent / "conf"
    return folder if (folder / "config.yaml").is_file() else None


def help_text(overrides: Sequence[str]) -> str:
    """The whole page, with `overrides` composed in."""
    folder = conf_folder()
    if folder:
        with initialize_config_dir(str(folder), version_base="1.3"):
            config = compose("config", list(overrides))
    else:
        with initialize_config_module("runner.conf", version_base="1.3"):
            config = compose("config", list(overrides))
    lines = [EXAMPLES, "== Groups (group=option) =="]
    lines += [f"{group}: {', '.join(options)}" for group, options in _groups(folder).items()]
    lines += ["", "== Modes: what one launch means =="]
    lines += mode_lines()
    return "\n".join([*lines, "", "== Settings ==", OmegaConf.to_yaml(config), FOOTER])


def _groups(folder: Path | None) -> dict[str, list[str]]:
    root = folder or resources.files("runner.conf")
    groups = {}
    groups["mode"] = list(MODES)
    for group in sorted((entry for entry in root.iterdir() if entry.is_dir()), key=lambda entry: entry.name):
        options = sorted(entry.name[:-5] for entry in group.iterdir() if entry.name.endswith(".yaml"))
        if options and group.name != "mode":
            groups[group.name] = options
    return dict(sorted(groups.items()))


def mode_lines() -> list[str]:
    """A line a mode: what one launch means."""
    width = max(map(len, MODES))
    return [f"{name:<{width}}  {_summary(name)}" for name in MODES]


def _summary(name: str) -> str:
    """First line of the mode's module: read, not imported, since that would load compilers."""
    text = (resources.files("launchopt.modes") / f"{name}.py").read_text()
    return text.splitlines()[0].strip('"').partition(": ")[2].rstrip(".")
