"""The line on modes that are left out."""

import pytest
from support.config.composing import planned

from launchopt.modes import MODES
from runner.plan.left_out import left_out

GPU = {f"gpu{each}": f"needs a GPU: reason {each} of it" for each in range(3)}


@pytest.mark.parametrize(
    ("why", "shown"),
    [
        ("launches a layer with experts: use workload=moe", "use workload=moe"),
        ("needs torch: pip install -e '.[torch]'", "pip install -e '.[torch]'"),
        ("needs a driver of CUDA 13 or newer, and this one is of CUDA 12: use mode=graph", None),
        ("needs several requests: the commands of one stay on one stream", "needs several requests"),
        ("mode.kernels=own: our GEMM takes fp16 and bf16", None),
        ("fuses bias, ReLU and scale in a row: this workload has none", "cannot run this work"),
    ],
)
def test_of_many_modes_a_reason_is_cut_to_what_to_set_or_install(why: str, shown: str | None) -> None:
    assert left_out({"one": why, **GPU}) == (
        f"4 modes are left out: 3: gpu0, gpu1, gpu2 (needs a GPU); 1: one ({shown or why})"
    )


def test_of_one_reason_the_count_stands_once() -> None:
    late = dict.fromkeys("abcd", "no time within --budget-s")
    assert left_out(late) == "4 modes are left out: a, b, c, d (no time within --budget-s)"
    assert "1: e (failed its check)" in left_out(late | {"e": "failed its check: wrong"})


def test_of_few_modes_the_reasons_are_whole() -> None:
    assert left_out({"one": "a: b", "two": "a: b", "three": "c"}) == "3 modes are left out: one, two (a: b); three (c)"


def test_the_line_of_all_modes_is_short_and_names_each() -> None:
    plan = planned("mode=batched", "against=all", "device=cpu", "workload=gemv_micro", "workload.commands=64")
    (notice,) = [each for each in plan.notices if "left out" in each]
    assert len(plan.refused) > 15
    assert all(mode in notice for mode in plan.refused)
    assert len(notice) < 700
    assert {*plan.refused} < {*MODES}
