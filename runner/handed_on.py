"""Commands that a mode did not launch in its own way, as a line a mode: what a run says of itself when it has ended.

In: the manifest's entries of repeats, each with its mode and how many commands went by which strategy
(`recorder.Strategy`). Out: text. A mode that never launches but in its own way, or has none, has no line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from launchopt.modes import mode_class


def handed_on(runs: Iterable[Mapping[str, Any]]) -> list[str]:
    """`megakernel: 32 of 640 commands were launched otherwise: strided 32`, of the repeat in which they were most."""
    most: dict[str, tuple[int, int, str]] = {}
    for run in runs:
        own, by = mode_class(run["mode"]).own_strategy, run["commands_by_strategy"]
        if not own:
            continue
        others = {name: count for name, count in by.items() if name != own}
        listed = ", ".join(f"{name} {count:,}" for name, count in others.items())
        found = sum(others.values()), sum(by.values()), listed
        most[run["mode"]] = max(most.get(run["mode"], found), found)
    return [
        f"{mode}: {others:,} of {commands:,} commands were launched otherwise: {listed}"
        for mode, (others, commands, listed) in most.items()
        if others
    ]
