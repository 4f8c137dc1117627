"""Lists of GEMMs in modes that take batches, on the CPU and on a fake of CUDA: outputs are right, groups in order."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.cuda.fake_cuda import device_of, fake_cuda
from support.modes.batch_runs import Run
from support.steps.launching import recorded
from support.steps.listed import Listed, lists

from launchopt.batching.batch import SEVERAL, Batch
from launchopt.modes import mode_class
from launchopt.modes.graph import MOST_PASS
from launchopt.recording.launch_rows import CommandColumn, LaunchColumn, Strategy
from launchopt.traces.gemm_list import ListedGemm
from launchopt.traces.merged_rows import merged
from launchopt.verify.commands import CheckSettings, verify

MODES = ("batched", "coalesced", "pointer_array", "graph")
FOUR = [(64, 1, 128, 4, 0, 0), (64, 1, 128, 4, 1, 0), (64, 1, 64, 4, 0, 1)]  # two weights, then one that waits for them


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


def test_no_launch_of_the_tuning_reaches_beyond_the_arenas() -> None:
    """Nine commands share a weight, and the arenas have three slots: only a gathered batch has nine columns."""
    for mode in MODES:
        with fake_cuda() as device:
            run = Run(mode, Listed([(8, 1, 8, 9, 0, 0)]).stream(), 9, device=device)
            run.submit_all(9)
            assert sum(run.launches(LaunchColumn.SIZE)) == 9


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


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_graph_takes_a_whole_pass_in_one_launch(kind: str) -> None:
    with device_of(kind) as device:
        run = Run("graph", Listed(FOUR).stream(5, copies=2), 8, device=device)
        run.submit_all(5)
        assert run.launches(LaunchColumn.SIZE) == [12] * 5
        assert set(run.launches(LaunchColumn.SHAPE)) == {SEVERAL}
        assert run.prepared.counters().graph_replays == 5
        assert run.prepared.counters().padded_commands == 0
        run.finish()


def test_a_shorter_pass_such_as_that_of_a_warm_up_run_is_padded() -> None:
    stream = Listed(FOUR).stream(1)
    with fake_cuda() as device:
        run = Run("graph", stream, 8, device=device)
        (whole,) = run.batches(60)
        for part in (whole.words[:5], whole.words):
            run.prepared.submit(Batch(SEVERAL, part, whole.reason), flush_ns=0)
        assert run.prepared.counters().padded_commands == 7
        assert verify(stream, device.arenas, CheckSettings(64)).ok
        run.prepared.close()
        device.close()


@settings(deadline=None, max_examples=15)
@given(listed=lists(), shuffle=st.booleans(), most=st.integers(1, 4))
def test_the_gemms_of_a_graph_are_one_group_behind_another(listed: Listed, shuffle: bool, most: int) -> None:
    stream = listed.stream(2, shuffle=shuffle, grouped=True)
    limits = {shape: min(most, stream.counts[shape]) for shape in stream.shapes}
    group_of = [each[4:] for each in listed.commands(1)]
    with fake_cuda():
        from launchopt.devices.steps.pass_graph import layout_of

        layout = layout_of(stream, len(group_of), limits)
    commands = [layout.order[part.first : part.first + part.size].tolist() for part in layout.parts]
    assert sorted(each for part in commands for each in part) == list(range(len(group_of)))
    assert [group_of[part[0]] for part in commands] == sorted(group_of[part[0]] for part in commands)
    assert all(group_of[each] == group_of[part[0]] for part in commands for each in part)
    assert all(len(part) <= most for part in commands)


def test_a_pass_that_is_too_long_and_a_list_without_groups_are_launched_in_batches() -> None:
    assert mode_class("graph")().whole_pass(Listed(FOUR).stream(5)) == 12
    assert mode_class("graph")().whole_pass(Listed(FOUR).stream(5, grouped=False)) == 0
    assert mode_class("graph")().whole_pass(Listed([(4, 1, 4, MOST_PASS + 1, -1, 0)]).stream(1)) == 0
    assert mode_class("batched")().whole_pass(Listed(FOUR).stream(5)) == 0
