"""The `launchopt` NVTX domain, so that a profiler shows which range launched which kernels.

The environment says whether a tool is attached. Without one, the domain is nvtx's DummyDomain, whose `push_range` and
`pop_range` take about 40 ns a pair.
"""

from __future__ import annotations

import operator
import os
import warnings
from functools import lru_cache
from typing import Any, SupportsIndex

from launchopt.command import Dtype, ShapeKey

DOMAIN = "launchopt"


def attached() -> bool:
    """Return whether a tool (nsys, ncu) has asked NVTX to load it into this process."""
    return bool(os.environ.get("NVTX_INJECTION64_PATH"))


def is_profiled() -> bool:
    """Return whether a profiler is injected into this process. It slows launches, and writes its data at exit."""
    return attached() or bool(os.environ.get("CUDA_INJECTION64_PATH"))


@lru_cache(maxsize=1)
def domain() -> Any:
    """Return the domain of this process, chosen at the first call. Use this instead of `nvtx.get_domain`."""
    import nvtx

    found = nvtx.get_domain(DOMAIN)
    # nvtx asks the tool whether the domain is enabled. nsys 2022 and 2023 do not answer, which nvtx takes for no: it
    # returns a dummy although the tool would record every range.
    if attached() and type(found).__name__ == "DummyDomain":
        return _unasked_domain(found)
    return found


def _unasked_domain(dummy: Any) -> Any:
    """Do what nvtx's Domain.__new__ does, without the question; return `dummy` if nvtx has changed inside."""
    try:
        from nvtx._lib import lib

        made = object.__new__(lib.Domain)
        made.handle = lib.DomainHandle(DOMAIN)
        made.__init__(DOMAIN)
        # Register one string, so that a failure shows before a hot loop depends on the object.
        made.get_event_attributes(message=DOMAIN)
    except (ImportError, AttributeError, TypeError) as error:
        warnings.warn(f"NVTX ranges will be missing from this profile: {error}", RuntimeWarning, stacklevel=3)
        return dummy
    return made


def range_name(mode: str, shape: ShapeKey | None, dtype: Dtype) -> str:
    """Return the name of a launch's range: mode and shape (None: several). The number of commands is the payload."""
    return f"{mode} {'several shapes' if shape is None else shape} {dtype.name}"


def attributes(domain: Any, message: str, payload: SupportsIndex) -> Any:
    """Return event attributes for `push_range`, registered with the tool. Make them before the hot loop.

    nvtx drops the payload if it is a NumPy integer, so it is converted. TypeError: the payload is no integer.
    """
    return domain.get_event_attributes(message=message, payload=operator.index(payload))
