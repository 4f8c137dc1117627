"""Find the modes, workloads, arrivals and models of installed packages by their entry points.

    [project.entry-points."launchopt.modes"]
    halves = "launchopt_example.halves:Halves"

In: the metadata of packages. Out: names, and the object behind a name. No package is imported before its name is asked
for. `checked_class` refuses a class that this version cannot use. Each refusal is one line that names the package.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from itertools import chain
from traceback import walk_tb
from typing import Any, NoReturn, TypeVar

from launchopt.distribution import NAME, UNKNOWN, version
from launchopt.errors import ConfigError, one_line

GROUPS = {
    "mode": "launchopt.modes",
    "workload": "launchopt.workloads",
    "arrival": "launchopt.arrivals",
    "model": "launchopt.models",
}
_NAME = re.compile(r"[a-z][a-z0-9_]*")
# Words that stand for something else where a name is typed.
_RESERVED = ("all", "auto", "false", "help", "inf", "nan", "null", "true")
_MOST = 200  # most characters of the error of a package in a message

T = TypeVar("T")


@dataclass(frozen=True)
class Plugin:
    """One name of a package: `group=name` on the command line. entry: where its object is."""

    group: str
    name: str
    entry: metadata.EntryPoint

    @property
    def package(self) -> str:
        """Name of the package."""
        return one_line(self.entry.dist.name) if self.entry.dist else "an unknown package"

    @property
    def label(self) -> str:
        """Name and version of the package."""
        return f"{self.package} {one_line(self.entry.dist.version)}" if self.entry.dist else self.package

    @property
    def summary(self) -> str:
        """The package's own line about itself; "" if it has none."""
        return one_line(self.entry.dist.metadata.get("Summary", "")) if self.entry.dist else ""

    @property
    def top(self) -> str:
        """Name of the outermost module of its object. `EntryPoint.module` raises an error for a damaged entry."""
        return self.entry.value.partition(":")[0].partition(".")[0].strip()

    def refuse(self, why: str) -> NoReturn:
        """Raise the ConfigError that this plugin cannot be used."""
        raise ConfigError(self.group, self.name, f"{self.label} {one_line(why)}")


@cache
def plugins() -> tuple[Plugin, ...]:
    """Return every plugin of the installed packages, also those of one name, in alphabetical order."""
    found: dict[str, list[Plugin]] = {}  # by package: of two versions on the path, Python imports the first
    for package in metadata.distributions():
        with contextlib.suppress(Exception):  # damaged metadata, of whatever package
            entries = package.entry_points
            own = [Plugin(group, each.name, each) for group in GROUPS for each in entries.select(group=GROUPS[group])]
            if own:
                found.setdefault(package.name, own)
    every = chain.from_iterable(found.values())
    return tuple(sorted(every, key=lambda each: (each.group, each.name, each.label)))


def names(group: str) -> tuple[str, ...]:
    """Return the names that plugins add to a group, in alphabetical order, without names that cannot be typed."""
    return tuple(dict.fromkeys(each.name for each in plugins() if each.group == group and is_name(each.name)))


def is_name(name: str) -> bool:
    """Return whether a plugin may have this name."""
    return bool(_NAME.fullmatch(name)) and name not in _RESERVED


@cache
def plugin_of(group: str, name: str) -> Plugin | None:
    """Return the plugin of this name, None if there is none; ConfigError if two packages have it."""
    found = [each for each in plugins() if (each.group, each.name) == (group, name) and is_name(name)]
    if len(found) > 1:
        packages = " and ".join(dict.fromkeys(each.label for each in found))
        raise ConfigError(group, name, f"{packages}: {len(found)} plugins have this name; uninstall all but one")
    return found[0] if found else None


def loaded(plugin: Plugin) -> object:
    """Import the package and return the object; ConfigError if it cannot be imported, or needs another version."""
    _require_version(plugin)
    try:
        found: object = plugin.entry.load()
    except (Exception, SystemExit) as error:
        why = one_line(f"{type(error).__name__}: {error}", _MOST)
        plugin.refuse(f"cannot be imported ({why}): install what it needs, or pip uninstall {plugin.package}")
    return found


def checked_class(plugin: Plugin, base: type[T], own_name: Callable[[type[T]], object], method: str) -> type[T]:
    """Return the class of a plugin; ConfigError if this version of launchopt cannot use it.

    own_name: returns the name that a class gives itself. method: the method of `base` that every class must have.
    """
    found = loaded(plugin)
    what = plugin.entry.value
    if not isinstance(found, type) or not issubclass(found, base):
        plugin.refuse(f"is broken: {what} is no {base.__name__}; it must be a class derived from {base.__name__}")
    if (own := own_name(found)) != plugin.name:
        plugin.refuse(f"is broken: {what} names itself {own!r}, and its entry point is {plugin.name!r}")
    if inspect.getattr_static(found, method) is inspect.getattr_static(base, method):
        plugin.refuse(f"is broken: {what} lacks {method}()")
    if misfit := _misfit(found, base):
        plugin.refuse(f"was written for another version of {NAME}: {what}.{misfit}")
    return found


def _require_version(plugin: Plugin) -> None:
    """Raise ConfigError if the package's own requirements exclude this version of launchopt."""
    from packaging.requirements import InvalidRequirement, Requirement  # only a plugin that is used needs it

    own = version()
    for text in (plugin.entry.dist.requires if plugin.entry.dist else None) or ():
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            continue
        is_ours = wanted.name.lower() == NAME and own != UNKNOWN
        if is_ours and not wanted.specifier.contains(own, prereleases=True):
            plugin.refuse(f"needs {NAME} {wanted.specifier}, and this is {own}: install another version of either")


def _misfit(found: type, base: type) -> str | None:
    """Return the method that does not take the arguments that launchopt passes, such as `prepare()`; None if all do."""
    for kind in (each for each in found.__mro__ if issubclass(each, base) and each.__module__.startswith(f"{NAME}.")):
        for name, member in vars(kind).items():
            own = inspect.getattr_static(found, name, None)
            ours, theirs = _function(member), _function(own)
            if name.startswith("_") or ours is None or theirs is ours:
                continue
            if isinstance(member, classmethod) and not isinstance(own, classmethod):
                return f"{name}() must be a classmethod"
            parameters = [each.name for each in inspect.signature(ours).parameters.values()]
            try:
                inspect.signature(theirs).bind(*parameters)  # type: ignore[arg-type]  # None is refused, too
            except TypeError:
                return f"{name}() must take ({', '.join(parameters)})"
    return None


def _function(member: Any) -> Callable[..., object] | None:
    """Return the function behind a member of a class; None for any other member."""
    inner = getattr(member, "__func__", member)
    return inner if inspect.isfunction(inner) else None


def blamed(error: BaseException) -> str | None:
    """Return the package, with its version, of the plugin whose code raised an error; None if no plugin took part."""
    tops = {each.top: each.label for each in plugins()}
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    modules = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame in reversed(frames)]
    return next((tops[name] for name in modules if name in tops and name not in (NAME, "runner")), None)


def described(error: BaseException) -> str:
    """Return type and text of an error that nobody expected, after the package whose plugin raised it."""
    package = blamed(error)
    return f"{f'{package}: ' if package else ''}{type(error).__name__}: {error}"
