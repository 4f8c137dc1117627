"""The noise between processes that the doctor measures: from rows to a floor of the calibration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.results.compared_runs import repeats

from launchopt.analysis.verdict.calibration import BETWEEN_PROCESSES, Calibration, read_calibration, write_calibration
from launchopt.errors import RunError
from runner.doctor import processes as noise
from runner.doctor.__main__ import main
from runner.doctor.processes import measure_noise, noise_floor


def times(*levels: float) -> list[float]:
    return [level for level in levels for _ in range(5)]


def test_it_is_the_deviation_between_levels_of_the_noisier_mode() -> None:
    rows = [
        *repeats(*times(10, 10.1, 10.2, 10.3), processes=4),
        *repeats(*times(10, 10, 10, 10.01), processes=4, mode="batched"),
    ]
    floor = noise_floor(rows)
    assert floor.value == pytest.approx(100 * float(np.std(np.log([10, 10.1, 10.2, 10.3]), ddof=1)))
    assert (floor.unit, floor.repeats) == ("%", 4)


def test_it_is_read_back_from_the_file(tmp_path: Any) -> None:
    rows = [row for mode in noise.MODES for row in repeats(*times(10, 10.1, 10.2), processes=3, mode=mode)]
    calibration = Calibration("2026", {"name": "x"}, {}, {BETWEEN_PROCESSES: noise_floor(rows)})
    write_calibration(tmp_path / "x.json", calibration)
    found = read_calibration(tmp_path / "x.json").noise_between_processes()
    assert found is not None
    assert found.deviation == pytest.approx(0.0099, abs=1e-4)
    assert found.dof == 2


def test_two_processes_are_too_few() -> None:
    rows = [row for mode in noise.MODES for row in repeats(*times(10, 10.1), processes=2, mode=mode)]
    with pytest.raises(RunError, match="too few processes"):
        noise_floor(rows)


def test_a_run_that_fails_gives_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "COMMANDS", {"cpu": 0})
    with pytest.raises(RunError, match=r"workload\.commands=0"):
        measure_noise("cpu", 0, 3)


@pytest.mark.parametrize("number", ["2", "x", "1001"])
def test_a_wrong_number_of_processes_is_refused(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--processes", number])
    assert ended.value.code == 2
    assert "--processes" in capsys.readouterr().err
