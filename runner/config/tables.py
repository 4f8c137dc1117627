"""Tables of experiments: conf/experiment/EXPERIMENT/TABLE.yaml, one job of a sweep each.

Each is an option of the group `table`, too: `table=EXPERIMENT_TABLE`, and of predecessor_tables `table=TABLE`.
"""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

NAMED_ALONE = "predecessor_tables"


def conf_folder() -> Path | None:
    """Return the checkout's conf/, of a checkout or an editable install; None: it is the package runner.conf."""
    folder = Path(__file__).parents[2] / "conf"
    return folder if (folder / "config.yaml").is_file() else None


def conf_files() -> Traversable:
    """Return conf/, wherever it is."""
    return conf_folder() or resources.files("runner.conf")


def tables() -> dict[str, str]:
    """Return the config of every table, such as /experiment/remedies/decode_1, by its name in the group `table`."""
    found = {}
    for experiment in (conf_files() / "experiment").iterdir():
        for file in experiment.iterdir() if experiment.is_dir() else ():
            table = file.name.removesuffix(".yaml")
            name = table if experiment.name == NAMED_ALONE else f"{experiment.name}_{table}"
            found[name] = f"/experiment/{experiment.name}/{table}"
    return dict(sorted(found.items()))
