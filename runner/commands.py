"""The console script `launchopt`: its subcommands, and the overview that it prints without one.

`python -m runner WORDS` does the same, except that it runs the default experiment if there are no words. Settings and
options of a run need no subcommand: `launchopt mode=batched` is `launchopt run mode=batched`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import takewhile
from typing import NamedTuple, cast

from launchopt.errors import explained, nearest
from runner.ending import limits
from runner.ending.signals import signals


class Subcommand(NamedTuple):
    """A subcommand: its line in the overview, and the function `(words) -> exit code` of a module."""

    module: str
    summary: str
    function: str = "main"


SUBCOMMANDS = {
    "run": Subcommand("runner.cli", "run an experiment, or with -m a sweep; write results as Parquet", "run"),
    "report": Subcommand("runner.report.__main__", "results as tables, pictures, or one HTML page"),
    "verdict": Subcommand("runner.verdict", "what bounds each mode, and which strategy to try first"),
    "compare": Subcommand("runner.compare", "is B faster than A? two folders, or two modes of one run"),
    "doctor": Subcommand("runner.doctor.__main__", "check this machine, and measure its floors"),
    "trace": Subcommand("runner.profiles.trace", "cost of launches in a PyTorch profiler trace or nsys profile"),
    "record": Subcommand("runner.profiles.record", "run a PyTorch program, and write its GEMMs as a list"),
    "budget": Subcommand("runner.budget", "what launches cost a day, in hours of host and GPU"),
    "advise": Subcommand("runner.advise.__main__", "which strategy for your model, trace or list, and its gain"),
    "prefixes": Subcommand("runner.prefixes", "what a cache of prompt prefixes would hit in a trace"),
    "tune": Subcommand("runner.auto.__main__", "the table of mode=auto, from results"),
    "dataset": Subcommand("runner.dataset", "all runs below some folders in one Parquet file"),
    "matrix": Subcommand("runner.matrix", "which mode runs which workload, as Markdown"),
    "bench": Subcommand("runner.bench.__main__", "benchmarks of the path of a command, against good C++"),
    "nsys": Subcommand("runner.profiles.nsys", "launches of each NVTX range of an nsys profile"),
    "nsys_compare": Subcommand("runner.profiles.nsys_compare", "launches of two modes in nsys profiles, side by side"),
    "nsys_agree": Subcommand("runner.profiles.nsys_agree", "do our kernel counts and times agree with nsys?"),
    "ncu": Subcommand("runner.profiles.ncu", "bottleneck of each kernel that Nsight Compute replayed"),
    "reliability": Subcommand("runner.reliability", "tables of a kill campaign"),
    "completion": Subcommand("runner.help.completion", "a script that completes words in bash, zsh or fish"),
}
OVERVIEW = """launchopt measures what GEMM launches cost, and what each strategy saves.

usage: launchopt COMMAND ...

Commands:
{commands}

Start with:
  launchopt run workload=gemv_micro mode=batched

`launchopt COMMAND --help` explains one; `launchopt run --help` lists every setting."""
STARTING = ("run", "advise", "bench", "doctor")  # subcommands that start processes
LIKELY_WORDS = ("workload=", "mode=", "experiment=", "model=")  # first words that mean `launchopt run`
SETTING_STARTS = ("-", "+", "~")  # first characters of Hydra's options and overrides


def main(words: Sequence[str] | None = None) -> int:
    """Run the subcommand that the words name, by default those of the process; return its exit code."""
    given = list(sys.argv[1:] if words is None else words)
    if not given or given in (["--help"], ["-h"], ["help"]):
        print(overview())
        return 0
    if given[0] == "help":  # help report: as report --help
        given = [*given[1:2], "--help"]
    return dispatch(given)


def dispatch(words: Sequence[str]) -> int:
    """Run the subcommand that the first word names; a run if that is a setting or an option. Return the exit code."""
    if "--version" in takewhile("--".__ne__, words):
        from launchopt.distribution import NAME, version

        print(f"{NAME} {version()}")
        return 0
    if not words or "=" in words[0] or words[0].startswith(SETTING_STARTS):
        return call("run", words)
    name, others = words[0], words[1:]
    if name == "run" and others and others[0] in SUBCOMMANDS:
        return dispatch(others)  # `launchopt run verdict`
    if name in SUBCOMMANDS:
        return call(name, others)
    print(f"error: launchopt {name!r:.100}: no such command; {_instead(name)}", file=sys.stderr)
    return 2


def call(name: str, words: Sequence[str]) -> int:
    """Run a subcommand with its words and return its exit code."""
    from launchopt.caches import ensure_home
    from runner.importing import uncollected

    limits.require(is_run=name in STARTING)
    ensure_home()
    with uncollected():
        module, _, function = SUBCOMMANDS[name]
        program = cast("Callable[[Sequence[str]], int]", getattr(import_module(module), function))
    signals.orderly()
    return program(words)


def overview() -> str:
    """Return the text of `launchopt` without words: a line per command, and the command to type first."""
    width = max(map(len, SUBCOMMANDS))
    return OVERVIEW.format(
        commands="\n".join(f"  {name:<{width}}  {each.summary}" for name, each in SUBCOMMANDS.items())
    )


def _instead(name: str) -> str:
    """Return what to type instead of an unknown command."""
    meant = [f"launchopt {each}" for each in nearest(name, SUBCOMMANDS)]
    if not meant:
        from runner.config.typed.names import options_near

        near = [each for each in options_near(name) if each.startswith(LIKELY_WORDS)]
        meant = [f"launchopt run {each}" for each in near[:1]]
    return explained("launchopt lists all", "", meant)
