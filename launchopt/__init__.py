"""launchopt: what GEMM launches cost an LLM worker, and what each strategy saves.

`launchopt.run`, `launchopt.load` and `launchopt.compare` are its interface for Python programs (`launchopt.api`), and
`launchopt.record` records one. Names are loaded when they are first used: every import of this package would pay for
them otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launchopt.analysis.conclusions import Factor, Verdict
    from launchopt.api import Comparison, Result, compare, load, run
    from launchopt.errors import (
        ComparisonError,
        ConfigError,
        DataError,
        DeviceError,
        Interrupted,
        LaunchoptError,
        PackageError,
        RunError,
    )
    from launchopt.traces.recorder import record

    __version__: str

__all__ = [
    "Comparison",
    "ComparisonError",
    "ConfigError",
    "DataError",
    "DeviceError",
    "Factor",
    "Interrupted",
    "LaunchoptError",
    "PackageError",
    "Result",
    "RunError",
    "Verdict",
    "compare",
    "load",
    "record",
    "run",
]
_HOMES = {
    **dict.fromkeys(("Comparison", "Result", "compare", "load", "run"), "launchopt.api"),
    **dict.fromkeys(("Factor", "Verdict"), "launchopt.analysis.conclusions"),
    "record": "launchopt.traces.recorder",
}  # modules of public names; the others are in launchopt.errors

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Return a public name, or `__version__`."""
        if name == "__version__":
            from launchopt.distribution import version

            return version()
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_HOMES.get(name, "launchopt.errors")), name)

    def __dir__() -> list[str]:
        """Return the public names, and those of the module."""
        return sorted([*__all__, *globals()])
