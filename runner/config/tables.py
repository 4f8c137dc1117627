"""Tables of experiments. Each conf/experiment/EXPERIMENT/TABLE.yaml is one job of the experiment's sweep.

A user can run one alone with `table=EXPERIMENT_TABLE`, or `table=TABLE` for those of gpu_kernel_batcher.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import takewhile
from pathlib import Path

NAMED_ALONE = "gpu_kernel_batcher"


def conf_folder() -> Path | None:
    """Return conf/ of a checkout or an editable install; None in a wheel, which has the package runner.conf instead."""
    folder = Path(__file__).parents[2] / "conf"
    return folder if (folder / "config.yaml").is_file() else None


def conf_files() -> Traversable:
    """Return conf/ from the checkout or from the installed package."""
    return conf_folder() or resources.files("runner.conf")


def experiments() -> dict[str, str]:
    """Return what each experiment needs and shows: the first comment of its file up to the end of a sentence.

    The first line of the comment is the mark: `needs a GPU, 10 minutes`, or how long a CPU takes.
    """
    found = {}
    for file in (conf_files() / "experiment").iterdir():
        if file.name.endswith(".yaml"):
            lines = file.read_text(encoding="utf-8").splitlines()[1:]
            mark, *text = [
                line.removeprefix("#").strip() for line in takewhile(lambda line: line.startswith("#"), lines)
            ]
            found[file.name.removesuffix(".yaml")] = f"({mark}) {' '.join(text).partition('. ')[0].rstrip('.')}"
    return dict(sorted(found.items()))


def tables() -> dict[str, str]:
    """Return the config of every table, such as /experiment/strategies/decode_1, by its name in the group `table`."""
    found = {}
    for experiment in (conf_files() / "experiment").iterdir():
        for file in experiment.iterdir() if experiment.is_dir() else ():
            table = file.name.removesuffix(".yaml")
            name = table if experiment.name == NAMED_ALONE else f"{experiment.name}_{table}"
            found[name] = f"/experiment/{experiment.name}/{table}"
    return dict(sorted(found.items()))


def on_a_cpu(choices: Mapping[str, str | None]) -> str | None:
    """Return the line to print if an experiment for a GPU begins with device=cpu, or None. choices: by group."""
    experiment = choices.get("experiment")
    if choices.get("device") != "cpu":
        return None
    mark = experiments().get(experiment or "", "").partition(")")[0].removeprefix("(")
    if not mark.startswith("needs a GPU"):
        return None
    small = [name for name in tables() if name == f"{experiment}_tiny"]
    less = f"; for a CPU there is table={small[0]}" if small else ""
    return f"experiment={experiment}: {mark}, and takes far longer on a CPU{less}"
