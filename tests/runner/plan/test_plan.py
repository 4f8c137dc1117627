"""Plans: one stream a seed, and as many layers of a model as fit into the device's memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.config.composing import planned

from launchopt.arrivals.constant import Constant
from launchopt.devices.base import DeviceInfo
from launchopt.errors import ArenaMemoryError, ConfigError
from runner.plan import plan as plan_module
from runner.plan.plan import Plan


def records(plan: Plan) -> np.ndarray[Any, Any]:
    return np.concatenate([block.records for block in plan.stream.blocks()])


def test_a_seed_gives_one_stream() -> None:
    shuffled = ("workload.shuffle=true", "workload.commands=1000", "workload.replicas=256")
    first, again, other = (records(planned(*shuffled, f"seed={seed}")) for seed in (3, 3, 4))
    assert len(first) == 1000
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


MODEL = ("workload=decode", "model=llama_3_8b", "workload.tokens=2")
MEMORY_BYTES = 20 << 30


@pytest.fixture
def small_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with room for some of the layers of MODEL (28 GB in fp32)."""
    info = DeviceInfo("cuda", 0, "Fake", MEMORY_BYTES, 50 << 20, "memory of Fake", 12 << 20)
    monkeypatch.setattr(plan_module, "find_device", lambda kind, index: (info, "faked"))


LESS = {"none": "workload.tokens", "per_request": "workload.requests or workload.tokens"}


@pytest.mark.usefixtures("small_gpu")
@pytest.mark.parametrize("ordering", LESS)
def test_layers_are_cut_to_what_fits_and_that_is_said(ordering: str) -> None:
    plan = planned(*MODEL, f"ordering={ordering}")
    layers = plan.stream.layers
    assert 1 < layers < 32
    assert plan.stream.arena_bytes < MEMORY_BYTES
    (notice,) = [notice for notice in plan.notices if "layers" in notice]
    assert notice.startswith(f"layers: {layers} of llama_3_8b's 32, as many as fit into 19.3 GB of memory of Fake")
    with pytest.raises(ArenaMemoryError) as caught:
        planned(*MODEL, f"ordering={ordering}", f"workload.layers={layers + 1}")
    assert str(caught.value).endswith(f"lower workload.layers or {LESS[ordering]}")


@pytest.mark.usefixtures("small_gpu")
def test_layers_asked_for_are_kept() -> None:
    plan = planned(*MODEL, "workload.layers=3")
    assert plan.stream.layers == 3
    assert [notice for notice in plan.notices if "layers" in notice] == [
        "layers: 3 of llama_3_8b's 32 (workload.layers=3)"
    ]


@pytest.mark.usefixtures("small_gpu")
def test_a_workload_without_the_setting_says_that_it_runs_one_layer() -> None:
    plan = planned("workload=moe", "model=tiny_moe", "workload.steps=1")
    notices = [notice for notice in plan.notices if "layers" in notice]
    assert notices == ["layers: 1 of tiny_moe's 2, since workload=moe runs one"]


@pytest.mark.usefixtures("small_gpu")
def test_no_word_of_layers_where_all_fit() -> None:
    plan = planned("workload=decode", "model=tiny")
    assert plan.stream.layers == 2
    assert not any("layers" in notice for notice in plan.notices)


OPEN = ("workload=gemv_256", "workload.commands=5", "arrival=constant", "arrival.rate_per_s=1000")


def test_a_rule_without_a_rate_has_that_of_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Constant, "asked_rate_per_s", None)
    plan = planned(*OPEN)
    assert plan.due_per_s == pytest.approx(1000)
    assert plan.job(Path("x")).open_loop
    monkeypatch.setattr(Constant, "due_ns", lambda rule, count, seed: np.zeros(count, np.int64))
    plan = planned(*OPEN)
    assert plan.due_per_s is None
    assert plan.job(Path("x")).open_loop


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [0] * 5,
        np.zeros(4, np.int64),
        np.zeros((5, 1), np.int64),
        np.zeros(5),
        np.full(5, -1),
        np.arange(5, 0, -1),
    ],
    ids=str,
)
def test_times_that_no_rule_may_give_are_refused(wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Constant, "due_ns", lambda rule, count, seed: wrong)
    with pytest.raises(
        ConfigError, match=r"^arrival=constant: its due_ns must return 5 int64 times that never decrease"
    ):
        planned(*OPEN)
