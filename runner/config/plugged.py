"""Options of groups that installed packages add (`launchopt.plugins`). A package is imported when a config names it.

In: the path of a config, such as `mode/halves` or `schema/workload/burst`. Out: a node in Hydra's ConfigStore, and the
class among the schemas. launchopt's own options, and those of the user's folder, come before those of plugins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hydra.core.config_store import ConfigStore

from launchopt.arrivals.base import Arrival
from launchopt.errors import ConfigError
from launchopt.messages import print_error
from launchopt.modes import OWN_MODES
from launchopt.plugins.found import GROUPS, Plugin, checked_class, is_name, loaded, plugin_of, plugins
from launchopt.streams.model import Model
from launchopt.workloads.base import Workload
from runner.config.composing import group_options, own_options, plugin_names
from runner.config.modes import mode_settings
from runner.config.schema import PLUGGED, SCHEMAS, Config

CLASSES = ("workload", "arrival")  # groups whose options are classes, which a YAML of the user may take as its schema


def plugin_at(config_path: str) -> Plugin | None:
    """Return the plugin that a path of a config means, None if it means no plugin; ConfigError if it means two."""
    group, _, name = config_path.removeprefix("schema/").rpartition("/")
    known = CLASSES if config_path.startswith("schema/") else GROUPS
    return plugin_of(group, name) if group in known and name in plugin_names(group) else None


def register(plugin: Plugin) -> None:
    """Import the plugin and store its node, unless that was done before; ConfigError if it cannot be used."""
    group, name = plugin.group, plugin.name
    if name in PLUGGED[group]:
        return
    node, store = _NODES[group](plugin), ConfigStore.instance()
    try:
        store.store(group=group, name=name, node=node)
        if group in CLASSES:
            store.store(group=f"schema/{group}", name=name, node=node)
    except Exception as error:  # a type of an option that OmegaConf does not know
        plugin.refuse(f"is broken: {plugin.entry.value} has an option that no config can set ({error})")
    PLUGGED[group][name] = node


def register_named(words: Iterable[str]) -> None:
    """Register the plugins that words such as `mode=halves` name. Those that cannot be used are left out."""
    for word in words:
        with contextlib.suppress(ConfigError):
            if (plugin := plugin_at(word.replace("=", "/", 1))) is not None:
                register(plugin)


def _mode(plugin: Plugin) -> object:
    return mode_settings(plugin.name)


def _workload(plugin: Plugin) -> object:
    return checked_class(plugin, Workload, lambda kind: kind.option(), "stream")


def _arrival(plugin: Plugin) -> object:
    return checked_class(plugin, Arrival, lambda kind: kind.option(), "due_ns")


def model_of(plugin: Plugin) -> Model:
    """Return the model of a plugin; ConfigError if it cannot be used."""
    found = loaded(plugin)
    if not isinstance(found, Model):
        plugin.refuse(f"is broken: {plugin.entry.value} is no Model")
    if found.name != plugin.name:
        plugin.refuse(f"is broken: {plugin.entry.value} has the name {found.name!r}, not that of its entry point")
    return found


_NODES: dict[str, Callable[[Plugin], Any]] = {
    "mode": _mode,
    "workload": _workload,
    "arrival": _arrival,
    "model": model_of,
}


def of_plugins(config: Config, modes: Iterable[str]) -> dict[str, Plugin]:
    """Return the plugins that take part in a run, by the settings that name them. modes: those of its arms."""
    used = [("mode", each) for each in modes if each not in OWN_MODES]
    for group, kind in zip(CLASSES, (type(config.workload), type(config.arrival)), strict=True):
        used += [(group, name) for name, each in PLUGGED[group].items() if each is kind]
    used += [("model", name) for name in PLUGGED["model"] if name == config.model.name]
    found = {f"{group}={name}": plugin_of(group, name) for group, name in used}
    return {key: each for key, each in found.items() if each is not None}


def plugin_lines(config: Config, modes: Sequence[str]) -> list[str]:
    """Return the lines that name the packages of the plugins of a run. modes: those of its arms."""
    used = of_plugins(config, modes)
    lines = (
        [f"plugins: {', '.join(f'{setting} of {plugin.label}' for setting, plugin in used.items())}"] if used else []
    )
    named = [f"mode={each}" for each in modes]
    named += [f"workload={config.workload.name}", f"arrival={config.arrival.kind}", f"model={config.model.name}"]
    hidden = [each for each in plugins() if (setting := f"{each.group}={each.name}") in named and setting not in used]
    return [*lines, *(f"{each.group}={each.name} is launchopt's own: {each.label} has one, too" for each in hidden)]


def problems() -> dict[Plugin, str]:
    """Return each installed plugin with the reason why it cannot be used, "" if it can. Every package is imported."""
    found = {}
    for plugin in plugins():
        found[plugin] = why = _conflict(plugin)
        try:
            if not why and plugin_of(plugin.group, plugin.name) is not None:
                register(plugin)
        except ConfigError as error:
            found[plugin] = error.allowed
    return found


def usable_options() -> dict[str, list[str]]:
    """Return the options of every group without broken plugins, which are named on standard error."""
    found = group_options()
    for plugin, why in problems().items():
        if why:
            print_error(f"{plugin.group}={plugin.name}: {why}", "warning")
        if why and plugin.name not in own_options()[plugin.group]:
            found[plugin.group] = [name for name in found[plugin.group] if name != plugin.name]
    return found


def _conflict(plugin: Plugin) -> str:
    """Return why the name of a plugin cannot be used, without an import; "" if it can."""
    if not is_name(plugin.name):
        return f"{plugin.label}: not a name that can be typed; allowed: lower-case letters, digits and _"
    if plugin.name in own_options()[plugin.group] or plugin.name in SCHEMAS.get(plugin.group, {}):
        return f"{plugin.label} has the name of launchopt's own {plugin.group}, which is used; rename the plugin"
    return ""
