"""launchopt: what GEMM launches cost an LLM worker, and what each strategy saves. Imports nothing from `runner`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        """Return `__version__`. It is read on demand: every import of this package would pay for it otherwise."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from launchopt.distribution import version

        return version()
