"""Which commands, in which order, with which dependencies and shared weights; no clock and no GPU.

Each workload is one file with its options. It is found by being there: a module here with a class derived from
`Workload`. One that has a name of its own is an option of `workload=`; of others a YAML in conf/workload makes options.
"""

from __future__ import annotations

from functools import cache

from launchopt.options import declared_in
from launchopt.workloads.base import Workload


@cache
def workloads() -> dict[str, type[Workload]]:
    """Return the class of every workload by its kind, which is the name of its module."""
    return {kind.__module__.rpartition(".")[2]: kind for kind in declared_in(__name__, Workload)}
