"""A process under a profiler knows it: it must end in the ordinary way, for the tool writes what it has at exit."""

from __future__ import annotations

import pytest

from launchopt.timing.nvtx_ranges import is_profiled

TOOLS = ("NVTX_INJECTION64_PATH", "CUDA_INJECTION64_PATH")


@pytest.mark.parametrize("tool", [None, *TOOLS])
def test_either_injection_counts(tool: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TOOLS:
        monkeypatch.delenv(name, raising=False)
    if tool:
        monkeypatch.setenv(tool, "/lib/injected.so")
    assert is_profiled() == (tool is not None)
