"""Workloads: the commands, their order, their dependencies and the weights they share. They know no clock and no GPU.

Each workload is one file with its options. `workloads()` finds every module here with a class derived from `Workload`.
A workload whose class has a default name is an option of `workload=`. A YAML in conf/workload names any other one.
"""

from __future__ import annotations

from functools import cache

from launchopt.options import declared_in
from launchopt.workloads.base import Workload


@cache
def workloads() -> dict[str, type[Workload]]:
    """Return the class of every workload by its kind, which is the name of its module."""
    return {kind.__module__.rpartition(".")[2]: kind for kind in declared_in(__name__, Workload)}
