"""Tests marked `gpu` are skipped, with the reason, on a machine without a usable GPU. Files that take long come first.

`--thorough` tries every case that tests generate, where a sample is the default (`support.thorough`).
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from support import thorough
from support.config.quick_hydra import quicken

from launchopt.errors import DeviceError

# On a host with hundreds of MB of cache each run would fill gigabytes of inputs, and measure memory beyond that cache.
os.environ.setdefault("LAUNCHOPT_CPU_CACHE_MIB", "32")

# These come first. With --dist loadfile (scripts/check.sh) their tests go to any process one by one, so that no process
# is left alone with a long file in the end. Any other file stays with one process, because of its fixtures.
LONGEST = (
    "test_kills",
    "test_races_on_host",
    "test_megakernel_on_host",
    "test_paired_blocks_on_host",
    "test_bad_overrides",
    "test_persistent_on_host",
)
# These come next, 10 to 30 s each: at the end they would leave the other process without work.
LONG = (
    "test_sweep",
    "test_signals",
    "test_packaging",
    "test_python_programs",
    "test_docs",
    "test_bad_input",
    "test_first_run",
    "test_disks",
    "test_modes_gpu",
    "test_matrix",
    "test_contributing",
    "test_requests",
)
# A full collection looks at every object of a test session, and takes 0.1 s or more: 10% of the time of tests.
COLLECT_AFTER = (20_000, 20, 20)
SETTINGS = "_hypothesis_internal_use_settings"  # where hypothesis keeps a property's settings


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="try every case that tests generate, not a sample")


def pytest_configure(config: pytest.Config) -> None:
    thorough.select(config.getoption("thorough"))
    quicken()
    gc.set_threshold(*COLLECT_AFTER)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # `check.sh &`: else no Ctrl-C reaches the programs


def pytest_collection_finish() -> None:
    """Let no later collection look at the tests and at the modules they import: these stay until the end."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (item.path.stem not in LONGEST, item.path.stem not in LONG))
    _draw_fewer({item.function for item in items if isinstance(item, pytest.Function)})


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return nodeid if Path(file).stem in LONGEST else file

    return Scheduling(config, log)


def _draw_fewer(functions: Iterable[object]) -> None:
    for each in functions:
        own = getattr(each, SETTINGS, None)
        if own is not None:
            fewer = hypothesis.settings(own, max_examples=thorough.examples(own.max_examples))
            setattr(each, SETTINGS, fewer)


@functools.cache
def missing_gpu() -> str | None:
    """Return why there is no GPU to test on; None if there is one."""
    from launchopt.devices.cuda.info import cuda_info

    try:
        cuda_info()
    except DeviceError as error:
        return str(error)
    return None


@pytest.fixture(autouse=True)
def no_handler_stays() -> Iterator[None]:
    """Remove handlers of logging that a command set up in this process: their stream is closed behind the test."""
    before = list(logging.root.handlers)
    yield
    for handler in [each for each in logging.root.handlers if type(each) is logging.StreamHandler]:
        if handler not in before:
            logging.root.removeHandler(handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and (reason := missing_gpu()):
        pytest.skip(reason)
