"""Tests marked `gpu` are skipped, with the reason, on a machine that has no usable GPU."""

from __future__ import annotations

import functools

import pytest

from launchopt.errors import DeviceError


@functools.cache
def missing_gpu() -> str | None:
    """Why there is no GPU to test on; None where there is one."""
    from launchopt.devices.cuda_info import cuda_info

    try:
        cuda_info()
    except DeviceError as error:
        return str(error)
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and (reason := missing_gpu()):
        pytest.skip(reason)
