"""A stand-in for the ring that notifies the driver, for tests without one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from launchopt.queue.ring import Ring

NO_DRIVER = cast(Ring, SimpleNamespace(capacity=1024))
