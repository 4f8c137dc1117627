"""Dataclasses of the group mode: a mode's choices and options, which are declared in launchopt/modes.

`mode_settings` makes the class of a mode; `options_of_label` reads a label, such as graph+norm+pdl.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, make_dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

from omegaconf import MISSING

from launchopt.errors import ConfigError, choices
from launchopt.modes import OWN_MODES, check_mode
from launchopt.modes.options import SUBMIT_OPTIONS, RepeatsSteps, options_of, options_with
from launchopt.modes.stack import (
    CHOICES,
    check_stack,
    choices_of,
    conflict,
    is_preset,
    label_of,
    preset_stack,
    stack_of,
    values_of,
)
from launchopt.options import Value, check_options, fixed
from launchopt.stack import Stack, Submit

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

NOTHING: Mapping[str, Value] = MappingProxyType({})


@dataclass(slots=True)
class Mode:
    """The chosen mode; `mode_settings` adds its options."""

    preset: ClassVar[str] = ""  # name of the mode whose options and stack a class has
    name: str = MISSING

    def __post_init__(self) -> None:
        check_mode(self.name)
        fixed("mode.name", self.name, self.preset or self.name)
        check_options("mode", self)
        check_stack("mode", self.name, self._choices)
        for each in self._others:
            if each.name not in self.taken and getattr(self, each.name) != each.default:
                raise _of_another_submit(each.name, getattr(self, each.name))

    @property
    def _choices(self) -> dict[str, Value]:
        """The choices of the stack that are not the preset's."""
        values = {key: getattr(self, key) for key in CHOICES}
        return {key: value for key, value in values.items() if not is_preset(self.name, key, value)}

    @property
    def _others(self) -> list[Field[Value]]:
        """Fields of the options that are no choices of the stack."""
        return [each for each in fields(self) if each.name not in ("name", *CHOICES)]

    @property
    def stack(self) -> Stack:
        """The choices."""
        return stack_of(self.name, self._choices)

    @property
    def taken(self) -> set[str]:
        """Names of the options that the mode has with its submit, beside the choices of its stack."""
        return {each.name for each in fields(options_with(self.name, self.stack.submit))} - {*CHOICES}

    @property
    def options(self) -> dict[str, Value]:
        """Values of the options by name, for the constructor of the mode, without those that are the preset's."""
        values = {each.name: getattr(self, each.name) for each in self._others if each.name in self.taken}
        return {key: value for key, value in values.items() if value is not None} | self._choices

    @property
    def label(self) -> str:
        """Name in tables: that of the mode, and how its stack differs from the preset's."""
        return label_of(self.name, self.stack)


@dataclass(slots=True)
class AutoMode(Mode):
    """mode=auto: `runner.auto` puts the mode of measurements in its place before a run is planned."""

    name: str = "auto"

    def __post_init__(self) -> None:
        """Check nothing: the mode is not known yet."""

    @property
    def stack(self) -> Stack:
        """No choice is made yet."""
        return Stack()

    @property
    def options(self) -> dict[str, Value]:
        """The mode has no options."""
        return {}


def _submits_with(key: str) -> list[Submit]:
    """Return the values of mode.submit that give a stack this option."""
    return [submit for submit, kind in SUBMIT_OPTIONS.items() if key in {each.name for each in fields(kind)}]


def _of_another_submit(key: str, value: object) -> ConfigError:
    submits = _submits_with(key)
    why = f"mode.{key} belongs to mode.submit={choices(submits)}; did you mean to add mode.submit={submits[0]}?"
    return ConfigError(f"mode.{key}", value, why)


def mode_settings(name: str) -> Mode:
    """Return the settings of a mode with every option at its default."""
    return _class_of(name, options_of(name))(name=name)  # type: ignore[arg-type]  # a class has a hash


def __getattr__(name: str) -> type[Mode]:
    """Return the class of a mode's settings, by which pickle knows it: `Mode_batched`."""
    kind, _, mode = name.partition("_")
    if kind != Mode.__name__ or not mode:
        raise AttributeError(name)
    return _class_of(mode, options_of(mode))  # type: ignore[arg-type]  # the same


@cache
def _class_of(name: str, options: type[DataclassInstance]) -> type[Mode]:
    """Return the class of a mode's settings. options: of the mode."""
    preset = values_of(preset_stack(name))
    types = {} if name in OWN_MODES else get_type_hints(options)  # of our own, `options_of` made the types
    declared = [
        (each.name, types.get(each.name, each.type), _with_default(each, preset.get(each.name, each.default)))
        for each in fields(options)
    ]
    made: type[Mode] = make_dataclass("Mode", [*declared, *_of_other_submits(name)], bases=(Mode,))  # takes 1 ms
    made.__module__, made.__qualname__, made.preset = __name__, f"{Mode.__name__}_{name}", name
    return made


def _of_other_submits(name: str) -> list[tuple[str, object, object]]:
    """Return the name, type and field of each option that a mode has only with another submit.

    Its default is None. The metadata `submits` has the values of mode.submit that give the mode this option.
    """
    preset, found = preset_stack(name), list[tuple[str, object, object]]()
    able = [submit for submit in SUBMIT_OPTIONS if conflict(name, replace(preset, submit=submit)) is None]
    known = {each.name for each in fields(options_of(name))} if able else set[str]()
    for each, kind, all_submits in _of_submits():
        submits = [submit for submit in all_submits if submit in able]
        if submits and each.name not in known:
            text = f"{each.metadata['help']}; only with mode.submit={choices(submits)}"
            metadata = {**each.metadata, "help": text, "submits": submits}
            found.append((each.name, kind | None, field(default=None, metadata=metadata)))
    return found


@cache
def _of_submits() -> list[tuple[Field[Any], Any, list[Submit]]]:
    """Return the options that depend on mode.submit: the field, the type, and the values of mode.submit with it."""
    kinds = get_type_hints(RepeatsSteps)
    declared = [each for each in fields(RepeatsSteps) if each.name not in CHOICES]
    return [(each, kinds[each.name], _submits_with(each.name)) for each in declared]


def mode_of_label(label: str) -> Mode:
    """Return the settings of the mode with this label, such as graph+norm+pdl; ConfigError if there is none."""
    name, chosen = choices_of(label)
    check_mode(name)
    return replace(mode_settings(name), **chosen)  # type: ignore[arg-type]  # a class of `mode_settings` has these


def options_of_label(label: str, others: Mapping[str, Value] = NOTHING) -> dict[str, Value]:
    """Return the options of the mode with this label, such as graph+norm+pdl; ConfigError if there is none.

    others: values of options that are no choices of a stack, for those of them that this stack has. The rest have their
    defaults.
    """
    mode = mode_of_label(label)
    return mode.options | {key: value for key, value in others.items() if key in mode.taken}


def _with_default(declared: Field[object], value: object) -> object:
    """Return the field of an option with this default."""
    if isinstance(value, list):
        return field(default_factory=value.copy, metadata=declared.metadata)
    return field(default=value, metadata=declared.metadata)
