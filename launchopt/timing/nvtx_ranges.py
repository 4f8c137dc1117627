"""The `launchopt` NVTX domain, so that a profiler shows which range launched what.

Enters: whether a tool is attached, from the environment. Leaves: a domain with `push_range(attributes)` and
`pop_range()`, which is nvtx's DummyDomain (about 40 ns a pair) when nothing listens.
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
    """Whether a tool (nsys, ncu) has asked NVTX to load it into this process."""
    return bool(os.environ.get("NVTX_INJECTION64_PATH"))


def is_profiled() -> bool:
    """Whether any profiler is injected into this process: it slows launches down, and writes what it has at exit."""
    return attached() or bool(os.environ.get("CUDA_INJECTION64_PATH"))


@lru_cache(maxsize=1)
def domain() -> Any:
    """The domain of this process, decided at the first call; use this one and not `nvtx.get_domain`."""
    import nvtx

    found = nvtx.get_domain(DOMAIN)
    # nvtx asks the tool whether the domain is enabled, a question that nsys 2022 and 2023 do not answer: nvtx
    # takes that for no, and hands out a dummy although the tool records whatever it is sent.
    if attached() and type(found).__name__ == "DummyDomain":
        return _unasked_domain(found)
    return found


def _unasked_domain(dummy: Any) -> Any:
    """What nvtx's Domain.__new__ does, without its question; `dummy` where nvtx has been rebuilt inside."""
    try:
        from nvtx._lib import lib

        made = object.__new__(lib.Domain)
        made.handle = lib.DomainHandle(DOMAIN)
        made.__init__(DOMAIN)
        # Registering one string proves that the object works before a hot loop depends on it.
        made.get_event_attributes(message=DOMAIN)
    except (ImportError, AttributeError, TypeError) as error:
        warnings.warn(f"NVTX ranges will be missing from this profile: {error}", RuntimeWarning, stacklevel=3)
        return dummy
    return made


def range_name(mode: str, shape: ShapeKey | None, dtype: Dtype) -> str:
    """What a launch's range is called: its mode and shape (None: it has several); the number of commands is payload."""
    return f"{mode} {'several shapes' if shape is None else shape} {dtype.name}"


def attributes(domain: Any, message: str, payload: SupportsIndex) -> Any:
    """Event attributes for `push_range`, registered with the tool: build before the hot loop, reuse in it.

    nvtx drops a NumPy integer payload, so those are converted; what is no integer at all is a TypeError.
    """
    return domain.get_event_attributes(message=message, payload=operator.index(payload))
