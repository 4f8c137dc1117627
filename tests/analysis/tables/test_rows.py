"""What a row says of its stream: whether the order of the commands matters."""

from __future__ import annotations

import pytest
from support.results.summary_rows import DECODE, row

from launchopt.analysis.comparison.likeness import unlike_work
from launchopt.analysis.tables.rows import DEPENDENCIES_IGNORED, disorder, is_independent


@pytest.mark.parametrize("workload", ["gemv_micro", "mine"])
def test_a_run_says_whether_its_commands_are_independent_whatever_its_workload_is_called(workload: str) -> None:
    free = row(workload=workload, independent=True, ordering="none")
    assert is_independent(free)
    assert disorder(free) is None
    assert unlike_work(free, {**free, "ordering": "per_request"}) == []
    bound = row(workload=workload, independent=False, ordering="none")
    assert not is_independent(bound)
    assert disorder(bound) == DEPENDENCIES_IGNORED
    assert unlike_work(bound, {**bound, "ordering": "per_request"})


def test_an_old_file_goes_by_the_name() -> None:
    assert is_independent(row(independent=None))
    assert not is_independent(row(**DECODE, independent=None))
