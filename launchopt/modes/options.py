"""The options of modes, each declared in its mode's file, in a dataclass named `Options`.

    @dataclass(slots=True)
    class Options(ModeOptions):
        streams: int = option(4, "streams that take launches in turn", low=2, high=64, is_power_of_two=True)

    class MultiStream(Mode):
        options: Options = Options()

A stack's `submit` decides which options it has beside its choices: a mode has those that it declares with the submit of
its preset, and with another submit those of SUBMIT_OPTIONS.

`options_of` reads this class from the file's text, without an import of the file. An import would load compilers, and
`--help` and an error in the command line must appear at once. So the arguments of `option` must be literals, and the
base must be a class of this module. The module of a plugin is imported, once a config names its mode.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, fields, make_dataclass
from functools import cache
from importlib import resources
from typing import get_type_hints

from launchopt.errors import LaunchoptError
from launchopt.modes import OWN_MODES, found_class
from launchopt.modes.stack import preset_stack
from launchopt.options import Value, option
from launchopt.plugins.found import plugin_of
from launchopt.stack import Fusion, Kernels, Submit

FOLDER = resources.files(__package__)
TYPES = {"bool": bool, "int": int, "float": float, "str": str}


@dataclass(slots=True)
class ModeOptions:
    """The options of every mode, which are the choices of its stack. None stands for the choice of the preset."""

    coalesce: bool | None = option(None, "requests that share a weight become columns of one GEMM")
    fuse: list[str] | None = option(None, "rows of a step that become one launch", choices=tuple(map(str, Fusion)))
    submit: str | None = option(None, "how launches reach the GPU", choices=tuple(map(str, Submit)))
    pdl: bool | None = option(None, "programmatic dependent launch of our own kernels")
    kernels: str | None = option(None, "whose kernels compute", choices=tuple(map(str, Kernels)))


@dataclass(slots=True)
class KeepsGraphs(ModeOptions):
    """Options of a mode that keeps captured graphs or instruction lists."""

    cached: int = option(
        64, "graphs or instruction lists kept; beyond that the one used longest ago is replaced", low=1, high=4096
    )


@dataclass(slots=True)
class RepeatsSteps(KeepsGraphs):
    """Options of a mode whose launches generate several tokens of each request."""

    tokens: int = option(64, "most tokens of each request that one launch generates", low=1, high=4096)


SUBMIT_OPTIONS: Mapping[Submit, type[ModeOptions]] = {
    Submit.graph: KeepsGraphs,
    Submit.graph_loop: RepeatsSteps,
    Submit.graph_device: RepeatsSteps,
}


def values_of(options: ModeOptions) -> dict[str, Value]:
    """Return the options by name."""
    return {each.name: getattr(options, each.name) for each in fields(options)}


def options_with(name: str, submit: Submit) -> type[ModeOptions]:
    """Return the class of a mode's options if its stack has this submit."""
    return options_of(name) if submit is preset_stack(name).submit else SUBMIT_OPTIONS.get(submit, ModeOptions)


@cache
def options_of(name: str) -> type[ModeOptions]:
    """Return the class of a mode's options, made from the text of its file, or that of a plugin.

    Raise LaunchoptError if the text breaks the rules of this module, or if the plugin cannot be used.
    """
    if name not in OWN_MODES and plugin_of("mode", name) is not None:
        return type(found_class(name).options)
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    if "class Options" not in text:
        return ModeOptions
    (found,) = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == "Options")
    try:
        base = globals()[ast.unparse(found.bases[0])]
        declared = [_declared(node) for node in found.body if isinstance(node, ast.AnnAssign)]
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise LaunchoptError(f"launchopt/modes/{name}.py: class Options needs literals and a base of ours") from error
    made: type[ModeOptions] = make_dataclass("Options", declared, bases=(base,))
    return made


def undeclared(options: type[ModeOptions]) -> str | None:
    """Return the first option that `option` does not declare, or that has another type; None if there is none."""
    allowed: list[object] = [*(kind for each in TYPES.values() for kind in (each, each | None)), list[str] | None]
    hints = get_type_hints(options)
    return next((each.name for each in fields(options) if not each.metadata or hints[each.name] not in allowed), None)


def _declared(node: ast.AnnAssign) -> tuple[str, object, object]:
    """Return the name, type and field of `NAME: TYPE = option(...)`."""
    kind, _, rest = ast.unparse(node.annotation).partition(" | ")
    call = node.value
    if not isinstance(call, ast.Call) or rest not in ("", "None"):
        raise ValueError(ast.unparse(node))
    arguments = [ast.literal_eval(argument) for argument in call.args]
    limits = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    return ast.unparse(node.target), TYPES[kind] | None if rest else TYPES[kind], option(*arguments, **limits)
