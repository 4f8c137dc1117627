"""The split of an operator's time on the host into framework, library and driver."""

from __future__ import annotations

import pytest

from launchopt.devices.launch_breakdown import Floor
from runner.doctor.dispatch import GEMM, LAUNCH, OURS, print_dispatch, splits


def floor(value: float) -> Floor:
    return Floor(value, "us", None, None, 1, "by hand")


FLOORS = {LAUNCH: floor(2.5), GEMM: floor(6.0), "dispatch_torch_mm_us": floor(9.0)}


def test_a_gemm_has_a_library_and_other_operators_have_their_launches() -> None:
    sdpa = {"dispatch_torch_sdpa_us": floor(30.0), "dispatch_torch_sdpa_launches": floor(2.0)}
    found = {each.operator: each[1:] for each in splits(FLOORS | sdpa)}
    assert found == {
        "torch_mm": (1, 9.0, 3.0, 3.5, 2.5),
        "torch_sdpa": (2, 30.0, 25.0, 0.0, 5.0),
        OURS: (1, 6.0, 0.0, 3.5, 2.5),
    }


def test_launches_of_a_split_gemm_are_the_drivers() -> None:
    split = FLOORS | {"dispatch_torch_mm_launches": floor(2.0), "dispatch_cublaslt_launches": floor(2.0)}
    found = {each.operator: each[1:] for each in splits(split)}
    assert found == {"torch_mm": (2, 9.0, 3.0, 1.0, 5.0), OURS: (2, 6.0, 0.0, 1.0, 5.0)}


@pytest.mark.parametrize("launches", [1.0, 2.0, 3.0])
def test_the_parts_add_up(launches: float) -> None:
    for each in splits(FLOORS | {"dispatch_cublaslt_launches": floor(launches)}):
        assert each.framework_us + each.library_us + each.driver_us == pytest.approx(each.whole_us)


@pytest.mark.parametrize("floors", [{}, {LAUNCH: floor(2.5), GEMM: floor(6.0)}, {"dispatch_torch_mm_us": floor(9.0)}])
def test_without_operators_or_launches_nothing_is_printed(
    floors: dict[str, Floor], capsys: pytest.CaptureFixture[str]
) -> None:
    print_dispatch(floors)
    assert capsys.readouterr().out == ""


def test_the_table_has_a_line_for_each_operator(capsys: pytest.CaptureFixture[str]) -> None:
    print_dispatch(FLOORS)
    printed = capsys.readouterr().out
    assert "torch_mm" in printed
    assert OURS in printed
    assert "10-30 us" in printed
