"""Steps of one launch each on the host: which steps qualify, launches ahead, feedback; every command is right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.config.composing import configured
from support.megakernel.fake_megakernel import FakeMegakernel, fake_megakernel
from support.megakernel.megakernel_rigs import Rig
from support.steps.program_interpreter import NONE
from support.steps.programs import requests_of, stream_of
from support.steps.step_runs import asked_of_python

from launchopt.command import Dtype
from launchopt.devices.feedback.stages import STAGES
from launchopt.devices.instructions.words import Word
from launchopt.errors import ConfigError
from launchopt.modes import mode_class
from launchopt.modes.megakernel import MegakernelMode
from launchopt.recording.launch_rows import LaunchColumn, Strategy
from launchopt.sampling import Sampling, SamplingKind
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.program import linear_program
from launchopt.workloads.gemv import gemv
from runner.config.modes import mode_settings

NAMES = ("linear", "square", "qkv", "linear_epilogue", "elementwise")
request_sizes = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)).filter(any), min_size=1, max_size=5)


@pytest.fixture
def kernel() -> Iterator[FakeMegakernel]:
    with fake_megakernel() as made:
        yield made


@settings(deadline=None, max_examples=40)
@example("linear", [(2, 3), (0, 2), (0, 3), (2, 0), (3, 2)], 1, 1, 2, 1, 2)
@given(
    st.sampled_from(NAMES),
    request_sizes,
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 5),
    st.sampled_from([None, 1, 2]),
    st.integers(1, 4),
)
def test_steps_are_right_in_any_batches(
    name: str,
    sizes: list[tuple[int, int]],
    layers: int,
    replicas: int,
    most: int,
    seed: int | None,
    cached: int,
) -> None:
    """Some launches ahead are followed by steps that are launched as in mode=coalesced."""
    stream = stream_of(name, sizes, layers=layers, replicas=replicas)
    with fake_megakernel() as kernel:
        run = Rig(kernel, stream, most, cached)
        for _ in range(3):
            before = len(kernel.launched)
            run.run(seed)
            run.check()
            assert sum(run.launches(LaunchColumn.SIZE)) == stream.commands
            assert run.launches(LaunchColumn.STRATEGY).count(Strategy.megakernel) == len(kernel.launched) - before
            assert run.kept <= max(cached, replicas)
        run.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_requests_in_step_is_one_launch(name: str, kernel: FakeMegakernel) -> None:
    stream = stream_of(name, [(0, 6)] * 4, replicas=2)
    run = Rig(kernel, stream, 4)
    run.run()
    run.check()
    rows = len(stream.rows_of(stream.decode_kind))
    strategies, sizes = run.launches(LaunchColumn.STRATEGY), run.launches(LaunchColumn.SIZE)
    first = len(strategies) - 5
    assert Strategy.megakernel not in strategies[:first], "the first token's inputs lie anywhere in the table"
    assert strategies[first:] == [Strategy.megakernel] * 5
    assert sum(sizes[:first]) == 4 * rows
    assert sizes[first:] == [4 * rows] * 5
    assert run.launches(LaunchColumn.SHAPE)[first:] == [-1] * 5, "of several shapes"
    assert not any(run.launches(LaunchColumn.PACKED_BYTES)[first:])
    assert [int(each[:, Word.REQUESTS].max()) for each in kernel.launched] == [4] * 5
    run.close()


@pytest.mark.parametrize("racecheck", [False, True])
def test_racecheck_is_an_option(racecheck: bool, kernel: FakeMegakernel) -> None:
    run = Rig(kernel, stream_of("qkv", [(0, 3)] * 2), 2, racecheck=racecheck)
    run.run()
    run.check()
    run.close()
    assert kernel.each_lane
    assert set(kernel.each_lane) == {racecheck}


def test_each_step_is_one_launch_with_more_copies_than_lists(
    kernel: FakeMegakernel,
) -> None:
    """This holds from the first run on. A small model has hundreds of copies, and a run may not use all of them."""
    run = Rig(kernel, stream_of("linear", [(0, 6)] * 3, replicas=20), 3, cached=2)
    assert run.kept == 6, "those of all requests"
    run.run()
    run.check()
    assert run.launches(LaunchColumn.STRATEGY).count(Strategy.megakernel) == 5, "all but the first token"
    assert run.kept == 6
    run.close()


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_launches_are_made_ahead_of_their_commands(replicas: int, kernel: FakeMegakernel) -> None:
    """A launch ahead repeats the successor seen before. At the end the last one is called off."""
    run = Rig(kernel, stream_of("linear", [(0, 12)] * 2, replicas=replicas), 2)
    for again in (False, True):
        kernel.waited = kernel.in_vain = 0
        run.run()
        run.check()
        launches = run.launches(LaunchColumn.STRATEGY).count(Strategy.megakernel)
        assert launches == 11
        assert kernel.waited == launches - (1 if again else 1 + replicas)
        assert kernel.in_vain == run.prepared.path.ahead.called_off == 1
        assert run.recorder.launch_calls == len(run.launches(LaunchColumn.SIZE)) + 1
    run.close()


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_compiled_loop_admits_all_that_waits(
    replicas: int, kernel: FakeMegakernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python admits no launch."""
    asked = asked_of_python(monkeypatch)
    stream = stream_of("linear", [(0, 12)] * 2, replicas=replicas)
    run = Rig(kernel, stream, 2)
    run.run_pumped()
    run.check()
    launches = run.launches(LaunchColumn.STRATEGY).count(Strategy.megakernel)
    assert launches == 11
    assert asked == [False] * (1 + replicas)
    assert kernel.waited == launches - len(asked)
    assert kernel.in_vain == run.prepared.path.ahead.called_off == 1
    assert kernel.device.fed_back == 1, "only the first token has a separate launch for feedback"
    run.close()


@pytest.mark.parametrize("how", [{"ahead": False}, {"traced": True}, {"sampled": True}, {"on_host": True}], ids=str)
def test_no_launch_is_made_ahead(how: dict[str, bool], kernel: FakeMegakernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches are not made ahead if a setting forbids it, if events time them, or if a launch does not feed back."""
    if how.pop("sampled", False):
        monkeypatch.setattr(type(kernel.device), "unmarked_launches", 1)
    sampling, vocab = (Sampling(SamplingKind.greedy), 50) if how.get("on_host") else (NONE, None)
    run = Rig(kernel, stream_of("linear", [(0, 6)] * 2, vocab=vocab), 2, sampling=sampling, **how)
    run.run()
    run.check()
    assert run.launches(LaunchColumn.STRATEGY).count(Strategy.megakernel) == len(kernel.launched) == 5
    assert (kernel.waited, kernel.in_vain) == (0, 0)
    run.close()


def test_no_gated_launch_under_a_tool(kernel: FakeMegakernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "of nsys, and of ncu")
    assert Rig(kernel, stream_of("linear", [(0, 6)]), 1).prepared.path.ahead is None


def test_with_an_lm_head_and_sampling(kernel: FakeMegakernel) -> None:
    stream = stream_of("linear", [(3, 3), (0, 4), (0, 4)], vocab=50)
    run = Rig(kernel, stream, 3, sampling=Sampling(SamplingKind.greedy))
    run.run()
    run.check()
    assert kernel.rows == [each[0, Word.REQUESTS] for each in kernel.launched] != []
    run.close()


# -- Blocks in pairs


@pytest.mark.parametrize(
    ("multiprocessors", "clusters", "split"), [(4, 2, 1), (4, 3, 1), (4, 1, 0), (4, 0, 0), (3, 2, 0), (2, 1, 1)]
)
def test_pairs_of_blocks_share_gemms_if_all_clusters_fit(multiprocessors: int, clusters: int, split: int) -> None:
    """With an odd number of blocks, one block would have no partner. Lists of one request have nothing to share."""
    program = linear_program([(64, 2048), (2048, 64)])
    stream = ChainStream(program, 1, requests_of([(0, 3)] * 16), Dtype.fp32, 1)
    with fake_megakernel(multiprocessors, clusters) as kernel:
        run = Rig(kernel, stream, 16)
        assert sorted(kernel.split) == [0, split]
        run.run()
        run.check()
        assert [int(each[0, Word.REQUESTS]) for each in kernel.launched] == [16, 16]
        run.close()


# -- Feedback by a launch


@pytest.mark.parametrize("vocab", [None, 50])
@pytest.mark.parametrize("kind", [SamplingKind.greedy, SamplingKind.top_k])
def test_a_launch_of_whole_steps_feeds_them_back(vocab: int | None, kind: SamplingKind, kernel: FakeMegakernel) -> None:
    """No other launch feeds them back. Steps launched as in mode=coalesced are fed back as in that mode."""
    sampling = Sampling(kind, top_k=3, seed=1) if vocab else Sampling(SamplingKind.none)
    run = Rig(kernel, stream_of("linear", [(0, 6)] * 4, vocab=vocab), 4, sampling=sampling)
    run.run()
    run.check()
    assert kernel.rows == [4] * 5
    assert kernel.device.fed_back == 1, "the first tokens"
    run.close()


def test_nothing_is_fed_back_by_a_launch_where_the_host_samples(kernel: FakeMegakernel) -> None:
    stream = stream_of("linear", [(0, 6)] * 4, vocab=50)
    run = Rig(kernel, stream, 4, sampling=Sampling(SamplingKind.greedy), on_host=True)
    run.run()
    run.check()
    assert kernel.rows == [0] * 5
    assert kernel.device.fed_back == 0
    assert kernel.device.sampling_ns() > 0
    run.close()


def test_more_launches_than_there_are_stages(kernel: FakeMegakernel) -> None:
    run = Rig(kernel, stream_of("linear", [(0, STAGES + 9)]), 1)
    for _ in range(2):
        run.run()
        run.check()
    assert kernel.rows[-STAGES - 8 :] == [1] * (STAGES + 8)
    run.close()


# -- Description and settings of the mode


def test_streams_that_the_mode_refuses() -> None:
    stream = stream_of("layer", [(2, 3)])
    assert mode_class("megakernel") is MegakernelMode
    assert MegakernelMode.refusal("cuda", stream) is None
    assert "needs a GPU" in str(MegakernelMode.refusal("cpu", stream))
    independent = gemv(8, 1, 8, 4, Dtype.fp16, 4)
    assert "takes whole steps" in str(MegakernelMode.refusal("cuda", independent))


def test_how_many_lists_are_kept_is_a_setting() -> None:
    config = configured("mode=megakernel", "mode.cached=7", "workload=decode", "model=tiny")
    others = {"ahead": True, "racecheck": False}
    assert config.mode.options == {"cached": 7, **others}
    assert mode_settings("megakernel").options == {"cached": 64, **others}
    with pytest.raises(ConfigError, match=r"mode\.cached=0: out of range; allowed: from 1 to 4096"):
        configured("mode=megakernel", "mode.cached=0", "workload=decode", "model=tiny")
