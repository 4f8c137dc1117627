"""The NVTX domain `launchopt`. Its ranges show in a profiler which mode launched which kernels.

Environment variables tell whether a profiler is attached. Without one, the domain is nvtx's DummyDomain, whose
`push_range` and `pop_range` take about 40 ns per pair.
"""

from __future__ import annotations

import operator
import os
import warnings
from functools import lru_cache
from typing import Protocol, SupportsIndex

from launchopt.command import Dtype, ShapeKey

DOMAIN = "launchopt"


class Domain(Protocol):
    """A domain of nvtx: ranges go to the attached profiler, if any."""

    def push_range(self, attributes: object) -> object:
        """Begin a range."""

    def pop_range(self) -> object:
        """End the innermost range."""

    def get_event_attributes(self, *, message: str, payload: int) -> object:
        """Return the attributes of a range, registered with the profiler."""


INJECTIONS = ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")  # set for the programs that a profiler starts


def attached() -> bool:
    """Return whether a profiler (nsys, ncu) records the NVTX ranges of this process."""
    return bool(os.environ.get("NVTX_INJECTION64_PATH"))


def is_profiled() -> bool:
    """Return whether a profiler is loaded into this process, which slows launches and writes its data at exit."""
    return attached() or any(map(os.environ.get, INJECTIONS))


@lru_cache(maxsize=1)
def domain() -> Domain:
    """Return the domain of this process, chosen at the first call. Use this instead of `nvtx.get_domain`."""
    import nvtx

    found: Domain = nvtx.get_domain(DOMAIN)
    # nvtx asks the profiler whether the domain is enabled. nsys 2022 and 2023 do not answer. nvtx treats this as "no"
    # and returns a dummy, although nsys would record every range.
    if attached() and type(found).__name__ == "DummyDomain":
        return _unasked_domain(found)
    return found


def _unasked_domain(dummy: Domain) -> Domain:
    """Return a domain as nvtx's Domain.__new__ makes it, without asking the profiler.

    Return `dummy`, with a warning, if this version of nvtx lacks the internals.
    """
    try:
        from nvtx._lib import lib

        made = object.__new__(lib.Domain)
        made.handle = lib.DomainHandle(DOMAIN)
        made.__init__(DOMAIN)
        # Register one string, so that a failure shows before a hot loop depends on the object.
        made.get_event_attributes(message=DOMAIN)
        checked: Domain = made
    except (ImportError, AttributeError, TypeError) as error:
        warnings.warn(f"NVTX ranges will be missing from this profile: {error}", RuntimeWarning, stacklevel=3)
        return dummy
    return checked


def range_name(mode: str, shape: ShapeKey | None, dtype: Dtype) -> str:
    """Return the name of a launch's range: mode, shape (None: several shapes) and dtype.

    The number of commands is not in the name; it is the range's payload.
    """
    return f"{mode} {'several shapes' if shape is None else shape} {dtype.name}"


def attributes(domain: Domain, message: str, payload: SupportsIndex) -> object:
    """Return event attributes for `push_range`, registered with the profiler. Make them before the hot loop.

    nvtx ignores a payload that is a NumPy integer, so it is converted. TypeError: the payload is no integer.
    """
    return domain.get_event_attributes(message=message, payload=operator.index(payload))
