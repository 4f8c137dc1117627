"""Check `against` and `waterfall`: labels of modes that run in turn with `mode`, such as engine or graph+norm+pdl."""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import DictConfig, open_dict, read_write

from launchopt.errors import ConfigError, as_typed, choices, explained, nearest
from launchopt.modes import MODES, mode_class
from launchopt.modes.stack import choices_of, label_of, stack_of
from launchopt.modes.stacked import Stacked
from launchopt.stack import preset_of
from runner.config.modes import Mode, options_of_label

WANTED = "lists of modes, such as waterfall=[[baseline,engine,engine+graph]]"
AUTO = "auto"  # value of `against`: the base of a single run; of `repeats`: until the noise is low
ALL = "all"  # value of `against`: every other mode that can run the workload here


def checked_against(against: object, mode: Mode) -> list[str]:
    """Return the labels, as tables show them; ConfigError for one that cannot be compared with `mode`."""
    given = [against] if isinstance(against, str) else against  # one mode, as `against=baseline`
    own = mode.label
    found: list[str] = []
    for name in given if isinstance(given, list) else [given]:
        label = _normal(name, "against") if isinstance(name, str) and preset_of(name) in MODES else name
        if label in found:
            raise ConfigError("against", name, f"{_twice(name, label)}; name each mode once")
        is_allowed = given == [ALL] if label == ALL else isinstance(label, str) and preset_of(label) in MODES
        if not isinstance(label, str) or not is_allowed or label == own:
            raise _refused(name, label, own)
        found.append(label)
    return found


def checked_orders(waterfall: object) -> list[list[str]]:
    """Return the labels of `waterfall`, a list for each order; ConfigError for any other value."""
    orders = [] if waterfall is None else waterfall
    if not isinstance(orders, list):
        raise ConfigError("waterfall", waterfall, explained("not a list of lists", WANTED))
    if len(orders) > 1 and all(isinstance(each, str) for each in orders):
        meant = [f"waterfall={as_typed([orders])}"]
        raise ConfigError("waterfall", orders, explained("a list of modes, not of lists", WANTED, meant))
    checked: list[list[str]] = []
    for order in orders:
        labels = _checked_order(order)
        if labels in checked:
            raise ConfigError("waterfall", order, "is named twice; name each order once")
        checked.append(labels)
    return checked


def _checked_order(order: object) -> list[str]:
    if not isinstance(order, list) or len(order) < 2:
        raise ConfigError("waterfall", order, explained("not a list of two or more modes", WANTED))
    labels = [_checked_mode(name) for name in order]
    for at, label in enumerate(labels):
        if label in labels[:at]:
            raise ConfigError("waterfall", order[at], f"{_twice(order[at], label)} in one order; name each mode once")
        if same := next((each for each in labels[:at] if _are_one_stack(each, label)), None):
            why = f"is the same stack as {same}, and each stack of an order has one choice more: leave one out"
            raise ConfigError("waterfall", order[at], why)
    return labels


def _are_one_stack(*labels: str) -> bool:
    """Return whether two modes launch the same: both are stacks of choices, with the same choices."""
    modes = [mode_class(preset_of(label), options_of_label(label)) for label in labels]
    return all(issubclass(each, Stacked) for each in modes) and len({each.stack for each in modes}) == 1


def _checked_mode(name: object) -> str:
    if isinstance(name, str) and preset_of(name) in MODES:
        return _normal(name, "waterfall")
    raise ConfigError("waterfall", name, explained("no such mode", choices(MODES), nearest(str(name), MODES)))


def _normal(label: str, key: str) -> str:
    """Return the label without choices that the mode's preset has. key: the setting to name in an error."""
    name, chosen = choices_of(label, key)
    return label_of(name, stack_of(name, chosen))


def _twice(name: object, label: object) -> str:
    """Return that an entry, as typed, is one more name of `label`."""
    return "is named twice" if name == label else f"is {label}, which has these choices, and is named twice"


def _refused(name: object, label: object, own: str) -> ConfigError:
    """Return the error for an entry, as typed. label: its normal form. own: label of the run's own mode."""
    if name == AUTO:
        why = "stands for the base, and goes alone; the mode that measurements choose is mode=auto"
        return ConfigError("against", name, explained(why, "", [f"against={AUTO}"]))
    others = sorted(set(MODES) - {own})
    allowed = f"{ALL} alone, or modes other than mode={own}: {', '.join(others)}"
    if label == own:
        why = "is the mode itself" if name == own else f"is mode={own} itself, which has these choices"
        return ConfigError("against", name, explained(why, allowed))
    why = "no such mode" if isinstance(name, str) else "not a list of modes"
    why = f"{ALL} goes alone" if name == ALL else why
    meant = [f"against={each}" for each in nearest(str(name), others)]
    return ConfigError("against", name, explained(why, allowed, meant))


def settled(task: DictConfig, bases: Sequence[str] = (), repeats: int = 1) -> DictConfig:
    """Return a copy of a composed config, with `bases` for `against: auto` and `repeats` for `repeats: null`."""
    found = task.copy()
    with read_write(found), open_dict(found):
        if found.against == AUTO:
            found.against = list(bases)
        if found.repeats is None:
            found.repeats = repeats
    return found
