"""The part megakernel: its cases, its figures, what it does without a GPU, and on one a whole case."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import pytest
from support.config.composing import configured

from launchopt.devices.cuda.info import cuda_info
from launchopt.devices.megakernel.step_account import Part, WeightsFloor
from launchopt.errors import DeviceError, RunError
from runner.bench import account, figures, megakernel
from runner.bench.__main__ import main
from runner.bench.account import Measured

SIZES = ("layers=2", "dtype=fp32", "requests=2", "tokens=6", "cache=hot")
LAYER = ("workload=layer", "model=tiny", "batching.max_batch=64", *(f"workload.{size}" for size in SIZES))
PARTS = [Part("GEMM 64x32", 2, 131.5, 1.75, 3.0, 2.25, 3.5, 3.5, 4.5, 2.5, 3.0, 0.25)]
FOUND = Measured(
    [40.0, 39.0, 41.0], [30.0], [25.0], 41.5, 1735.0, None, WeightsFloor(90_000_000, 4500.0, "read"), PARTS
)


@pytest.mark.parametrize("case", megakernel.CASES)
def test_cases_are_steps_of_the_mode_alone_and_say_what_they_are(case: str) -> None:
    config = configured(*megakernel.CASES[case], *megakernel.ALONE)
    assert (config.mode.name, config.against) == ("megakernel", [])
    assert config.workload.dtype.name in case
    assert f"{config.workload.requests} request" in case
    assert ("Llama 3.2 1B" in case) == (config.model.name == "llama_3_2_1b")


def test_figures_are_of_the_launches_and_the_floor() -> None:
    found = {figure.case: figure for figure in megakernel.figures("a case", FOUND)}
    assert {figure.suite for figure in found.values()} == {"megakernel"}
    assert {name: list(figure.samples) for name, figure in found.items() if figure.unit == "us"} == {
        "a case: the kernel alone": [40.0, 39.0, 41.0],
        "a case: no weights fetched (outputs wrong)": [30.0],
        "a case: nobody waited for (outputs wrong)": [25.0],
        "a case: least, all weights at the measured bandwidth": [20.0],
    }
    rate, share = found["a case: weights over the kernel's time"], found["a case: of the measured bandwidth"]
    assert (rate.row()["median"], share.row()["median"]) == (pytest.approx(2250.0), pytest.approx(0.5))
    assert rate.higher_is_better
    assert found["a case: weights read"].samples == [90.0]


def test_another_device_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["megakernel", "--device", "cpu", "--output", str(tmp_path)]) == 0
    (tmp_path / account.FILE).write_text("of that result")
    assert main(["megakernel", "--device", "cpu", "--output", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]
    assert "us" not in capsys.readouterr().out.split()


def test_a_gpu_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(DeviceError):
        cuda_info()
        pytest.skip("there is one")
    folder = tmp_path / "result"
    assert main(["megakernel", "--device", "cuda", "--output", str(folder)]) == 2
    assert capsys.readouterr().err.startswith("error: device=cuda: ")
    assert not folder.exists()


def test_a_run_that_launched_no_step_as_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, by another mode: producer, order and checks are those of a run."""
    monkeypatch.setattr(megakernel, "ALONE", ("against=[]", "timing=host", "device=cpu", "record.launches=none"))
    with pytest.raises(RunError, match="no step was one launch"), megakernel.checked([*LAYER, "mode=coalesced"]):
        pass


def test_a_producer_that_fails_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(megakernel, "ALONE", ("against=[]", "timing=host", "device=cpu", "record.launches=none"))
    monkeypatch.setattr(megakernel.Child, "send_job", lambda self, job: self.ask_to_exit())
    with pytest.raises(RunError, match="the producer ended"), megakernel.checked([*LAYER, "mode=coalesced"]):
        pass


@pytest.mark.gpu
def test_on_a_gpu_a_case_is_checked_timed_and_accounted_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(megakernel, "CASES", {"tiny fp32, 2 requests": (*LAYER, "mode=megakernel")})
    assert main(["megakernel", "--device", "cuda", "--repeats", "1", "--output", str(tmp_path)]) == 0
    found = figures.read(tmp_path)
    assert len(found) == 7
    assert all(math.isfinite(sample) and sample > 0 for row in found for sample in row["samples"])
    rows = account.read(tmp_path)
    assert all(row["verified"] for row in rows)
    assert sum(row["instructions"] for row in rows) > 10
    own_us = [sum(row[f"own_{name}_us"] for row in rows) for name in ("wait", "work", "between")]
    assert all(us > 0 for us in own_us)
    assert sum(own_us) <= 1.02 * rows[0]["stamped_us"]
    assert "| all |" in account.markdown(tmp_path)
