from __future__ import annotations

import pytest

from launchopt.devices.cpu.info import CACHE_VARIABLE, cpu_info
from launchopt.errors import ConfigError


def test_the_variable_gives_the_size_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, "7")
    assert cpu_info().cache_bytes == 7 << 20


@pytest.mark.parametrize("unset", [None, ""])
def test_without_it_the_kernel_does(monkeypatch: pytest.MonkeyPatch, unset: str | None) -> None:
    monkeypatch.delenv(CACHE_VARIABLE)
    if unset is not None:
        monkeypatch.setenv(CACHE_VARIABLE, unset)
    assert cpu_info().cache_bytes >= 1 << 16


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "32M", "1048577", "9" * 5000, "\u0663"])
def test_a_size_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, text)
    with pytest.raises(ConfigError, match=f"^{CACHE_VARIABLE}=.*: must be MiB of cache, from 1 to 1048576$"):
        cpu_info()
