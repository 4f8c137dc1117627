"""Lists of GEMMs in modes that take batches, on the CPU and on a fake of CUDA: outputs are right, groups in order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.cuda.fake_cuda import fake_cuda
from support.modes.batch_runs import Run
from support.steps.launching import recorded
from support.steps.listed import Listed, lists

from launchopt.modes import mode_class
from launchopt.recording.launch_rows import CommandColumn, LaunchColumn, Strategy
from launchopt.traces.gemm_list import ListedGemm
from launchopt.traces.merged_rows import merged

MODES = ("batched", "coalesced", "pointer_array", "graph")
FOUR = [(64, 1, 128, 4, 0, 0), (64, 1, 128, 4, 1, 0), (64, 1, 64, 4, 0, 1)]  # two weights, then one that waits for them


@contextlib.contextmanager
def device_of(kind: str) -> Iterator[Any]:
    if kind == "cpu":
        yield None
        return
    with fake_cuda() as device:
        yield device


@settings(deadline=None, max_examples=15)
@given(
    listed=lists(),
    order=st.fixed_dictionaries({"shuffle": st.booleans(), "grouped": st.booleans()}),
    repeat=st.integers(1, 3),
    most=st.integers(1, 9),
    chunk=st.integers(1, 40),
    mode=st.sampled_from(MODES),
    kind=st.sampled_from(["cpu", "cuda"]),
)
def test_outputs_are_right_and_groups_in_order(
    listed: Listed, order: dict[str, bool], repeat: int, most: int, chunk: int, mode: str, kind: str
) -> None:
    stream = listed.stream(repeat, copies=2, **order)
    assume(mode_class(mode).refusal(kind, stream) is None)
    with device_of(kind) as device:
        run = Run(mode, stream, most, device=device)
        run.submit_all(chunk)
        run.finish()
        assert sum(run.launches(LaunchColumn.SIZE)) == stream.commands
        if order["grouped"]:
            wanted = [each[4:] for each in listed.commands(repeat)]
            launched = recorded(run.recorder).commands[:, CommandColumn.SEQ].tolist()
            assert [wanted[seq] for seq in launched] == wanted


def test_projections_of_one_input_become_one_gemm_of_all_requests() -> None:
    """As recorded from a program that runs q, k and v of four requests side by side."""
    sizes = {"q": 64, "k": 32, "v": 32}
    recorded = [ListedGemm(m, 1, 16, 1, None, name, "0", f"x{r}") for name, m in sizes.items() for r in range(4)]
    for rows, launches in ((recorded, [4, 4, 4]), (merged(recorded), [4])):
        numbers: dict[tuple[int, str], int] = {(64, "q"): 0, (32, "k"): 0, (32, "v"): 1, (128, "q+k+v"): 0}
        listed = Listed([(each.m, 1, 16, 1, numbers[each.m, each.weight], 0) for each in rows])
        run = Run("coalesced", listed.stream(2), 8)
        run.submit_all(60)
        assert run.launches(LaunchColumn.SIZE) == launches * 2
        assert set(run.launches(LaunchColumn.STRATEGY)) == {Strategy.coalesced}
        run.finish()


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_commands_that_name_one_weight_are_one_gemm(kind: str) -> None:
    with device_of(kind) as device:
        run = Run("coalesced", Listed(FOUR).stream(5, copies=2), 8, device=device)
        run.submit_all(60)
        assert run.launches(LaunchColumn.SIZE) == [4, 4, 4] * 5
        assert set(run.launches(LaunchColumn.STRATEGY)) == {Strategy.coalesced}
        run.finish()
