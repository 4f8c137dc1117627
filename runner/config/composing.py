"""Names of the options of every group, and Hydra's `compose` without its application."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hydra import initialize_config_dir, initialize_config_module

from runner.config.schema import FOUND, register
from runner.config.tables import conf_files, conf_folder


def group_options() -> dict[str, list[str]]:
    """Return the names of the options of every group, in alphabetical order.

    They are the YAML files of conf/, and the modes, workloads and arrivals that launchopt declares.
    """
    groups = {group: list(options) for group, options in FOUND.items()}
    for group in conf_files().iterdir():
        if group.is_dir():
            names = [entry.name[:-5] for entry in group.iterdir() if entry.name.endswith(".yaml")]
            groups[group.name] = [*groups.get(group.name, []), *names]
    return {group: sorted(options) for group, options in sorted(groups.items()) if options}


@contextmanager
def composing() -> Iterator[None]:
    """Prepare Hydra, so that `hydra.compose` finds conf/ and the schemas during this block."""
    register()
    folder = conf_folder()
    if folder:
        with initialize_config_dir(str(folder), version_base="1.3"):
            yield
    else:
        with initialize_config_module("runner.conf", version_base="1.3"):
            yield
