"""Keep the parts of a JSON value that have the expected types.

    fitted({"name": "x", "rate": "fast"}, {"name": str, "rate": float}, lost)  ->  {"name": "x"}, lost == ["rate"]

A shape is a type (float: any finite number of usual size), a mapping of keys to shapes (`ANY`: the shape of all other
keys), or a list with the shape of its elements. Null fits every shape. Keys that a shape does not name are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ANY = "*"
NUMBER_MAX = 1e18
Shape = Any  # a type, a mapping, or a list of one shape


def fitted(value: Any, shape: Shape, lost: list[str], name: str = "") -> Any:
    """Return `value` without the parts that do not fit, whose names are added to `lost`; None if it is all of it."""
    if value is None:
        return None
    if isinstance(shape, type):
        return value if _is_of(value, shape) else _not(name, lost)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return _not(name, lost)
        inner = (fitted(each, shape[0], lost, f"{name}[{index}]") for index, each in enumerate(value))
        return [each for each in inner if each is not None]
    if not isinstance(value, Mapping):
        return _not(name, lost)
    kept = {}
    for key, each in value.items():
        inner_shape = shape.get(key, shape.get(ANY))
        found = each if inner_shape is None else fitted(each, inner_shape, lost, f"{name}.{key}" if name else key)
        if found is not None or each is None:
            kept[key] = found
    return kept


def _is_of(value: object, kind: type) -> bool:
    if kind not in (int, float):
        return isinstance(value, kind)
    if isinstance(value, bool) or not isinstance(value, int | float if kind is float else int):
        return False
    return abs(value) <= NUMBER_MAX  # false for NaN


def _not(name: str, lost: list[str]) -> None:
    lost.append(name)
