"""Tests marked `gpu` are skipped, with the reason, where there is no usable GPU; files that take minutes come first."""

from __future__ import annotations

import functools
import os

import pytest

from launchopt.errors import DeviceError

# A host with hundreds of MB of cache has each run fill gigabytes of inputs, and measure what memory gives beyond it.
os.environ.setdefault("LAUNCHOPT_CPU_CACHE_MIB", "32")

# Where each file is one process's (scripts/check.sh), none is alone with one of these in the end.
LONGEST = (
    "test_races_on_host",
    "test_megakernel_on_host",
    "test_paired_blocks_on_host",
    "test_kills",
    "test_bad_overrides",
    "test_persistent_on_host",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in LONGEST)


@functools.cache
def missing_gpu() -> str | None:
    """Why there is no GPU to test on; None where there is one."""
    from launchopt.devices.cuda.info import cuda_info

    try:
        cuda_info()
    except DeviceError as error:
        return str(error)
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and (reason := missing_gpu()):
        pytest.skip(reason)
