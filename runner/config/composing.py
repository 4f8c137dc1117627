"""Names of the options of every group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from launchopt.plugins.found import GROUPS, names
from runner.config.schema import FOUND, SCHEMAS
from runner.config.tables import conf_files


def own_options() -> dict[str, list[str]]:
    """Return the names of launchopt's own options of every group.

    They are the YAML files of conf/, and the modes, workloads and arrivals that launchopt declares.
    """
    groups = {group: list(options) for group, options in FOUND.items()}
    for group in conf_files().iterdir():
        if group.is_dir():
            found = [entry.name[:-5] for entry in group.iterdir() if entry.name.endswith(".yaml")]
            groups[group.name] = [*groups.get(group.name, []), *found]
    return _sorted(groups)


def group_options(config_dir: str | None = None) -> dict[str, list[str]]:
    """Return the names of the options of every group, with those of plugins and of the user's folder."""
    groups = own_options()
    groups |= {group: [*groups.get(group, []), *plugin_names(group)] for group in GROUPS}
    for file in Path(config_dir).glob("*/*.yaml") if config_dir else ():
        groups[file.parent.name] = [*groups.get(file.parent.name, []), file.stem]
    return _sorted(groups)


def plugin_names(group: str) -> list[str]:
    """Return the options that plugins add to a group, without names of launchopt's schemas, such as gemv."""
    return [name for name in names(group) if name not in SCHEMAS.get(group, {})]


def _sorted(groups: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    return {group: sorted(set(options)) for group, options in sorted(groups.items()) if options}
