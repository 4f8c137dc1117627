"""Costs of operators in traces of PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.results.kineto_events import TRACES, Event, call, kernel, written

from launchopt.analysis.profiles.dispatch import OperatorCost, operator_costs
from launchopt.analysis.profiles.launch_pairs import pair
from launchopt.traces.kineto import read_kineto

Costs = Callable[..., tuple[OperatorCost, ...]]


def operator(ts: object, dur: object, name: str, **other: object) -> Event:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": {}, **other}


@pytest.fixture
def costs(tmp_path: Path) -> Costs:
    """Costs of some events."""

    def of(*events: Event) -> tuple[OperatorCost, ...]:
        trace = read_kineto(written(tmp_path, events))
        return operator_costs(trace, pair(trace))

    return of


def test_the_parts_of_an_operator_that_calls_another(costs: Costs) -> None:
    # 10 linear; 12 addmm; 15..18 launch; 20 end of addmm; 21 end of linear.
    found = costs(operator(10, 11, "linear"), operator(12, 8, "addmm"), call(15, 3, 1), kernel(30, 5, 1))
    # framework: 2 before addmm, 3 behind the launch call; library: from addmm to the launch call.
    assert found == (OperatorCost("linear", 1, 1, 5.0, 3.0, 3.0, 11.0, None, 11.0),)


def test_python_is_what_lies_between_operators_less_cuda_calls(costs: Costs) -> None:
    events = [operator(start, 5, "add") for start in (0, 10, 30)]
    events += [call(start + 1, 2, i + 1) for i, start in enumerate((0, 10, 30))]
    waiting = call(16, 10, 9, name="cudaDeviceSynchronize")
    (found,) = costs(*events, waiting, *(kernel(50 + i, 1, i + 1) for i in range(3)))
    assert (found.calls, found.launch_calls, found.sum_us) == (3, 3, 15.0)
    assert (found.inner_us, found.driver_us, found.framework_us) == (1.0, 2.0, 2.0)
    assert found.between_us == 5.0  # 10 - 5, and 30 - 15 - 10


def test_several_launches_of_one_operator(costs: Costs) -> None:
    # Two launch calls in operators of their own, and one in the outer operator.
    events = [operator(0, 30, "sdpa"), operator(2, 6, "bmm"), operator(10, 6, "softmax")]
    events += [call(4, 2, 1), call(12, 2, 2), call(20, 2, 3), *(kernel(40 + i, 1, i) for i in (1, 2, 3))]
    (found,) = costs(*events)
    assert (found.launch_calls, found.driver_us, found.total_us) == (3, 6.0, 30.0)
    assert found.inner_us == 2 + 2 + 6  # the last from the end of the second call, since no operator is open


def test_operators_without_a_launch_have_no_row_and_threads_are_apart(costs: Costs) -> None:
    events = [operator(0, 9, "view"), operator(0, 9, "add", tid=2), call(3, 2, 1, tid=2), kernel(20, 1, 1)]
    assert [(each.name, each.between_us) for each in costs(*events)] == [("add", None)]
    assert costs(call(3, 2, 1), kernel(20, 1, 1)) == ()


def test_a_published_trace() -> None:
    path = TRACES / "h100_bert_small.kineto.json.gz"
    if not path.exists():
        pytest.skip(f"no {path.name}: download it from its source")
    trace = read_kineto(path)
    pairs = pair(trace)
    found = operator_costs(trace, pairs)
    assert 0 < sum(each.launch_calls for each in found) <= pairs.is_launch.sum()
    assert all(each.framework_us >= 0 and each.inner_us >= 0 and 0 < each.driver_us <= each.total_us for each in found)
