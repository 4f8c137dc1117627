"""Names of the options of every group."""

from __future__ import annotations

from runner.config.schema import FOUND
from runner.config.tables import conf_files


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
