"""The modes that a plan leaves out, as one line. The manifest's `refused` has the whole reason of each."""

from __future__ import annotations

import re
from collections.abc import Mapping

FEW = 3  # modes of which the line has whole reasons
NO_GPU = "needs a GPU"
KEPT = ("needs ", "no time ", "failed ")  # beginnings of reasons that say all before their first ": "
OTHER = "cannot run this work"
TYPED = re.compile(r"\w=\w|pip install")  # in a reason: what to set or install


def left_out(refused: Mapping[str, str]) -> str:
    """Return one line on the modes that are left out, grouped by their reasons.

    Of more than FEW modes each group has its count, the largest comes first, and a reason is cut to what to set or
    install, to what is needed, or to OTHER if it names neither. A trial that failed or had no time says so.
    """
    is_long = len(refused) > FEW
    by_reason: dict[str, list[str]] = {}
    for mode, why in refused.items():
        by_reason.setdefault(_short(why) if is_long else why, []).append(mode)
    groups = list(by_reason.items())
    if is_long:
        groups.sort(key=lambda group: -len(group[1]))
    counts = [f"{len(modes)}: " if len(groups) > 1 and is_long else "" for _, modes in groups]
    texts = [f"{count}{', '.join(modes)} ({why})" for count, (why, modes) in zip(counts, groups, strict=True)]
    return f"{len(refused)} {'modes are' if len(refused) > 1 else 'mode is'} left out: {'; '.join(texts)}"


def _short(why: str) -> str:
    """Return the part of a reason that says what to set, install or have: `use workload=moe`."""
    if why.startswith(NO_GPU):
        return NO_GPU
    told, _, then = why.partition(": ")
    is_need = why.startswith("needs ")
    if not TYPED.search(why):
        return told if why.startswith(KEPT) else OTHER
    is_whole = TYPED.search(told) or (is_need and "pip install" not in then)
    return why if is_whole else then
