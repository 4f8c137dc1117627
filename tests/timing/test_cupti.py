"""The tracer against a stand-in for CUPTI: what it keeps, names, bounds and counts as lost."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from enum import IntEnum
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from launchopt.errors import DeviceError
from launchopt.timing import activity as act
from launchopt.timing import cupti as tracing

SHIFT_NS = 1_700_000_000_000_000_000  # CUPTI's clock is ahead by so much


class ActivityKind(IntEnum):
    MEMCPY = 1
    MEMSET = 2
    KERNEL = 3
    DRIVER = 4
    RUNTIME = 5
    CONCURRENT_KERNEL = 10
    OVERHEAD = 17


Driver = IntEnum("Driver", {"cuLaunchKernelEx": 652})
Runtime = IntEnum("Runtime", {"cudaLaunchKernel_v7000": 211, "cudaGraphLaunch_v10000": 311})


class Result(IntEnum):
    ERROR_INSUFFICIENT_PRIVILEGES = 35
    ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39


class CuptiError(Exception):
    """As cupti-python 13.0 raises it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"{Result(status).name} ({status})")
        self.status = status


class FakeCupti(ModuleType):
    """Hands over what a test puts into `pending` when it is flushed."""

    ActivityKind, runtime_api_trace_cbid, driver_api_trace_cbid = ActivityKind, Runtime, Driver
    Result, cuptiError = Result, CuptiError  # noqa: N815 (the name in cupti-python)

    def __init__(self) -> None:
        super().__init__("cupti.cupti")
        self.pending: list[Any] = []
        self.enabled: set[int] = set()
        self.lost = 0
        self.refusals: dict[str, int] = {}  # status by the function that raises it
        self.subscribers = 0

    def _refuse(self, function: str) -> None:
        if function in self.refusals:
            raise CuptiError(self.refusals[function])

    def subscribe(self, callback: Callable[..., None], userdata: int) -> int:
        self._refuse("subscribe")
        self.subscribers += 1
        return 7

    def unsubscribe(self, subscriber: int) -> None:
        assert subscriber == 7
        self.subscribers -= 1

    def activity_register_callbacks(self, requested: Callable[[], tuple[int, int]], completed: Any) -> None:
        self._refuse("activity_register_callbacks")
        assert requested()[0] > 0
        self.completed = completed

    def activity_enable(self, kind: int) -> None:
        self._refuse("activity_enable")
        self.enabled.add(kind)

    def activity_disable(self, kind: int) -> None:
        self.enabled.remove(kind)

    def activity_flush_all(self, flag: int) -> None:
        pending, self.pending = self.pending, []
        self.completed(iter(pending))

    def activity_get_num_dropped_records(self, context: int, stream: int, address: int) -> None:
        ctypes.c_size_t.from_address(address).value = self.lost
        self.lost = 0

    def get_timestamp(self) -> int:
        return time.monotonic_ns() + SHIFT_NS


@pytest.fixture
def cupti(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupti]:
    package, fake = ModuleType("cupti"), FakeCupti()
    package.__spec__, package.__path__ = ModuleSpec("cupti", None), []
    package.cupti = fake
    monkeypatch.setitem(sys.modules, "cupti", package)
    monkeypatch.setitem(sys.modules, "cupti.cupti", fake)
    yield fake
    assert not fake.enabled, "left on"


def kernel(correlation: int, start: int, end: int, name: str = "gemv", graph: int = 0) -> SimpleNamespace:
    times = {"start": start + SHIFT_NS, "end": end + SHIFT_NS}
    kind = int(ActivityKind.CONCURRENT_KERNEL)
    return SimpleNamespace(kind=kind, name=name, correlation_id=correlation, stream_id=7, graph_id=graph, **times)


def copy(correlation: int, start: int, end: int) -> SimpleNamespace:
    times = {"start": start + SHIFT_NS, "end": end + SHIFT_NS}
    kind = int(ActivityKind.MEMCPY)
    return SimpleNamespace(kind=kind, bytes=64, correlation_id=correlation, stream_id=7, graph_id=0, **times)


def call(correlation: int, start: int, end: int, cbid: IntEnum) -> SimpleNamespace:
    kind = int(ActivityKind.RUNTIME if isinstance(cbid, Runtime) else ActivityKind.DRIVER)
    times = {"start": start + SHIFT_NS, "end": end + SHIFT_NS}
    return SimpleNamespace(kind=kind, cbid=int(cbid), correlation_id=correlation, **times)


def test_what_ran_with_its_calls_on_the_other_clock(cupti: FakeCupti) -> None:
    tracer = tracing.KernelTracer()
    cupti.pending = [kernel(1, 0, 1)]  # of before: to be forgotten
    cupti.lost = 5
    tracer.start()
    now = time.monotonic_ns()
    cupti.pending = [
        call(2, now, now + 900, Runtime["cudaLaunchKernel_v7000"]),
        call(2, now + 100, now + 800, Driver["cuLaunchKernelEx"]),
        call(3, now + 1_000, now + 1_900, Runtime["cudaGraphLaunch_v10000"]),
        call(4, now + 2_000, now + 2_100, Driver["cuLaunchKernelEx"]),  # started nothing
        kernel(3, now + 5_000, now + 6_000, "add", graph=9),
        kernel(2, now + 3_000, now + 4_000),
        copy(3, now + 6_000, now + 6_500),
        SimpleNamespace(kind=int(ActivityKind.OVERHEAD)),
    ]
    seen = tracer.stop()
    assert (seen.kernels, seen.dropped) == (2, 0)
    assert [seen.apis[row[act.CallColumn.NAME]] for row in seen.calls] == ["cudaLaunchKernel", "cudaGraphLaunch"]
    assert [seen.names[row[act.ActivityColumn.NAME]] for row in seen.activities] == ["gemv", "add", "memcpy, 64 bytes"]
    assert seen.activities[:, act.ActivityColumn.GRAPH].tolist() == [0, 9, 0]
    error_ns = max(seen.clock_error_ns, 1)
    assert abs(seen.activities[0, act.ActivityColumn.START_NS] - (now + 3_000)) <= error_ns
    assert abs(seen.calls[0, act.CallColumn.START_NS] - now) <= error_ns
    assert abs(seen.busy_ns - 2_000) <= 4


def test_what_is_lost_is_counted(cupti: FakeCupti) -> None:
    tracer = tracing.KernelTracer(most_records=3)
    tracer.start()
    now = time.monotonic_ns()
    cupti.pending = [kernel(i, now + i, now + i + 1) for i in range(5)]
    cupti.lost = 4
    seen = tracer.stop()
    assert (seen.kernels, seen.dropped) == (3, 2 + 4)
    tracer.start()
    assert (again := tracer.stop()).kernels == again.dropped == 0, "each run counts its own"


def test_it_says_when_it_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "missing", lambda *names: list(names))
    with pytest.raises(DeviceError, match="timing=cupti needs cupti-python; type: pip install"):
        tracing.require()


@pytest.mark.parametrize("variable", ["NVTX_INJECTION64_PATH", "CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID"])
def test_under_a_profiler_it_is_refused_before_the_run(
    variable: str, cupti: FakeCupti, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracing.require()
    monkeypatch.setenv(variable, "1")
    with pytest.raises(DeviceError, match="CUPTI accepts one tracer, and a profiler is attached; use timing=host"):
        tracing.require()


@pytest.mark.parametrize("function", ["subscribe", "activity_enable"])
def test_a_subscription_that_is_taken_is_said(function: str, cupti: FakeCupti) -> None:
    """Also by a tool in this process that no environment variable shows, as torch.profiler."""
    tracer = tracing.KernelTracer()
    tracer.start()
    tracer.stop()
    assert cupti.subscribers == 0
    cupti.refusals = {function: Result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED}
    with pytest.raises(DeviceError, match="CUPTI accepts one tracer, and a profiler is attached; use timing=host"):
        tracer.start()


def test_other_refusals_of_cupti_are_one_line(cupti: FakeCupti) -> None:
    cupti.refusals = {"subscribe": Result.ERROR_INSUFFICIENT_PRIVILEGES}
    tracer = tracing.KernelTracer()
    tracer.start()  # the subscription is only asked for, not needed
    tracer.stop()
    cupti.refusals = {"activity_register_callbacks": Result.ERROR_INSUFFICIENT_PRIVILEGES}
    with pytest.raises(DeviceError, match=r"^timing=cupti: CUPTI refused: ERROR_INSUFFICIENT_PRIVILEGES \(35\)$"):
        tracing.KernelTracer()
