"""The first line of a run says why the CPU was chosen; a second line says what to type, if that would help."""

from __future__ import annotations

import pytest

from launchopt.devices import find_device
from launchopt.devices.cuda import info


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "missing", lambda *modules: list(modules[:2]))


@pytest.mark.usefixtures("lacking")
def test_without_a_driver_there_is_no_gpu_and_nothing_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "driver_version", dict)
    assert find_device("auto", 0)[1] == "no NVIDIA GPU found"
    assert info.gpu_hint() is None


@pytest.mark.usefixtures("lacking")
@pytest.mark.parametrize(("driver", "extra"), [("580.65.06", "cuda13"), ("550.54.14", "cuda12")])
def test_beside_a_driver_the_missing_packages_are_named_and_the_command_fits_the_driver(
    monkeypatch: pytest.MonkeyPatch, driver: str, extra: str
) -> None:
    monkeypatch.setattr(info, "driver_version", lambda: {"driver": driver})
    assert find_device("auto", 0)[1] == "cupy, nvmath-python not installed"
    assert info.gpu_hint() == f"To use the GPU, type pip install -e '.[{extra}]'"


def test_a_gpu_that_cuda_refuses_gives_cudas_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(index: int) -> None:
        raise info.DeviceError("device=cuda: no usable NVIDIA GPU (CUDA_ERROR_NO_DEVICE)")

    monkeypatch.setattr(info, "missing", lambda *modules: [])
    monkeypatch.setattr(info, "cuda_info", refuse)
    assert find_device("auto", 0)[1] == "no usable NVIDIA GPU (CUDA_ERROR_NO_DEVICE)"
    assert info.gpu_hint() is None
