"""Tables of experiments. Each conf/experiment/EXPERIMENT/TABLE.yaml is one job of the experiment's sweep.

A user can run one alone with `table=EXPERIMENT_TABLE`, or `table=TABLE` for those of gpu_kernel_batcher.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import takewhile
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from launchopt.errors import ConfigError
from launchopt.messages import say
from launchopt.streams.model import ModelShape

NAMED_ALONE = "gpu_kernel_batcher"
MOST_ON_A_CPU = 1 << 28  # weights: small_1024 has 101 million


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


def mark_of(experiment: str | None) -> str:
    """Return the mark of one of our experiments, such as `needs a GPU, 10 minutes`; "" for any other name."""
    return experiments().get(experiment or "", "").partition(")")[0].removeprefix("(")


def require_gpu(config: DictConfig, words: Sequence[str]) -> None:
    """Refuse an experiment that needs a GPU on a machine without one, or print a line; see `notice_on_a_cpu`.

    A model for a GPU is no size that a user chose for a CPU. config: composed, with Hydra's node. words: the overrides.
    """
    experiment = config.hydra.runtime.choices.get("experiment")
    if not mark_of(experiment).startswith("needs a GPU"):
        return
    from launchopt.devices import find_device  # late: --help needs none of it

    asked = config.device.kind.value
    info, _ = find_device(asked, config.device.index)
    if info.kind == "cpu":
        chosen = [each for each in words if not (each.lstrip("+").startswith("model") and _is_large(config.model))]
        say(notice_on_a_cpu(experiment, asked == "cpu", chosen))


def _is_large(model: DictConfig) -> bool:
    """Return whether a model has more weights than a CPU reads in a moment."""
    if OmegaConf.missing_keys(model):
        return False
    shape = ModelShape(**{each.name: model[each.name] for each in fields(ModelShape)})
    return shape.layers * shape.layer_weights > MOST_ON_A_CPU


def notice_on_a_cpu(experiment: str, is_asked: bool, words: Sequence[str]) -> str:
    """Return the line to print before an experiment that needs a GPU starts on a CPU.

    Raise ConfigError unless the user asked for a CPU (`is_asked`) and chose a size of the work: that of the experiment
    is made for a GPU. words: the overrides.
    """
    if is_asked and any(re.match(r"\+*(workload|model|table)\b", word) for word in words):
        return f"experiment={experiment}: {mark_of(experiment)}, and takes far longer on a CPU"
    small = f"table={experiment}_tiny" if f"{experiment}_tiny" in tables() else "experiment=quick"
    why = f"on a CPU run {small}, or add device=cpu and a smaller model or workload"
    raise ConfigError("experiment", experiment, f"{mark_of(experiment)}; {why}")
