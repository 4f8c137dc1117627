"""Ceilings of a device are measured before the runs, after the last one, and before a rate is called impossible."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from launchopt.command import Dtype
from launchopt.timing.activity import Bandwidths, Ceilings
from runner.worker import ceilings as module
from runner.worker.ceilings import DeviceCeilings

BUSY = Ceilings(10.0, 10.0, 0.001)
ROW = {"achieved_tflops": 0.002, "achieved_gb_per_s": 1.0, "least_memory_bytes": 0, "bytes_moved": 1}


class Measured:
    """A device, measured first on a busy machine; from then on `again` is what is found."""

    def __init__(self, again: Ceilings, monkeypatch: pytest.MonkeyPatch, kind: str = "cpu") -> None:
        self.asked: list[Dtype] = []
        self._found = [BUSY, again]
        monkeypatch.setattr(module, "_highest", {})
        monkeypatch.setattr(module, "_latest", {})
        parts = {"ceilings": self._measure, "bandwidths": lambda: again.bandwidths}
        self._device: Any = SimpleNamespace(info=SimpleNamespace(kind=kind), **parts)
        self.ceilings = self.of(Dtype.fp32)

    def of(self, dtype: Dtype) -> DeviceCeilings:
        """As a job's consumer has them."""
        stream = SimpleNamespace(dtype=dtype)
        job: Any = SimpleNamespace(device_index=0, threads=2, residency=None, stream=stream)
        return DeviceCeilings(self._device, job)

    def _measure(self, dtype: Dtype) -> Ceilings:
        self.asked.append(dtype)
        return self._found[min(len(self.asked), 2) - 1]


def test_a_ceiling_measured_on_a_busy_machine_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Measured(Ceilings(8.0, 12.0, 0.1), monkeypatch)
    assert measured.ceilings.now == BUSY
    assert measured.ceilings.above(ROW) == (None, False)
    assert measured.asked == [Dtype.fp32] * 2
    assert measured.ceilings.now == Ceilings(10.0, 12.0, 0.1)
    assert measured.ceilings.columns() == {"copy_gb_per_s": 10.0, "read_gb_per_s": 12.0, "peak_tflops": 0.1}


def test_what_stays_above_is_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Measured(Ceilings(8.0, 12.0, 0.0015), monkeypatch)
    assert measured.ceilings.above(ROW) == ("0.002 TFLOP/s is above the measured peak of 0.0015", True)
    assert len(measured.asked) == 1 + module.MOST_AGAIN


def test_fp8_products_have_no_measured_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Measured(Ceilings(8.0, 12.0, 0.0015), monkeypatch)
    row = ROW | {"quantised_inputs": "fp8 per channel"}
    assert measured.ceilings.above(row) == (None, False)
    assert measured.ceilings.columns(row)["peak_tflops"] is None
    assert measured.ceilings.columns(row)["read_gb_per_s"] == BUSY.read_gb_per_s


def test_what_is_possible_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Measured(Ceilings(8.0, 12.0, 0.1), monkeypatch)
    assert measured.ceilings.above(ROW | {"achieved_tflops": 0.0005}) == (None, False)
    assert measured.asked == [Dtype.fp32]


def test_jobs_of_a_sweep_share_what_was_measured_of_a_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Measured(Ceilings(8.0, 12.0, 0.1), monkeypatch)
    assert measured.of(Dtype.fp32).now == BUSY
    assert measured.asked == [Dtype.fp32]
    assert measured.of(Dtype.fp16).now == Ceilings(8.0, 12.0, 0.1)
    assert measured.asked == [Dtype.fp32, Dtype.fp16]


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize(("copy", "read", "change"), [(10.0, 10.0, 0.0), (10.4, 9.8, 0.04), (10.0, 13.1, 0.31)])
def test_the_change_from_before_the_runs_to_after_them_is_the_larger_of_both_rates(
    kind: str, copy: float, read: float, change: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = Measured(Ceilings(copy, read, 0.1), monkeypatch, kind)
    found = measured.ceilings.after()
    assert found["ceilings_after"] == {"copy_gb_per_s": copy, "read_gb_per_s": read}
    assert found["ceilings_change"] == pytest.approx(change)


def test_a_neighbour_that_came_and_went_between_two_measurements_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Measured(Ceilings(20.0, 12.0, 0.1), monkeypatch)
    measured.ceilings.above(ROW)  # seems impossible, so all is measured again
    assert measured.ceilings.change == pytest.approx(1.0)


def test_a_further_job_begins_with_what_was_measured_behind_the_job_before(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Measured(Ceilings(8.0, 13.0, 0.1), monkeypatch)
    assert measured.ceilings.after()["ceilings_change"] == pytest.approx(0.3)
    further = measured.of(Dtype.fp32)
    assert further.after()["ceilings_change"] == 0
    assert further.now == BUSY
    assert measured.asked == [Dtype.fp32]
    assert Bandwidths(8.0, 13.0) == Ceilings(8.0, 13.0, 0.1).bandwidths
