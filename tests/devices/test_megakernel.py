"""Steps of one launch each on the host: which are, when their lists are made, kept and dropped; every command right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from composing import configured
from fake_megakernel import FakeMegakernel, fake_megakernel
from fake_words import NOT_NEAR
from hypothesis import example, given, settings
from hypothesis import strategies as st
from programs import requests_of, stream_of
from step_runs import StepRun, asked_of_python, batches

from launchopt import recorder as rec
from launchopt.command import Dtype
from launchopt.devices.feedback_stages import STAGES
from launchopt.devices.instruction_words import Word
from launchopt.devices.lt_steps import step_of
from launchopt.devices.megakernel_words import TASK
from launchopt.errors import ConfigError
from launchopt.modes import mode_class
from launchopt.modes.megakernel import CACHED, MegakernelMode
from launchopt.recorder import Strategy
from launchopt.sampling import Sampling, SamplingKind
from launchopt.step_batcher import StepBatch
from launchopt.workloads.chain import ChainStream
from launchopt.workloads.gemv import gemv
from launchopt.workloads.program import linear_program
from runner.mode_groups import mode_settings

NAMES = ("linear", "square", "qkv", "linear_epilogue", "elementwise")
request_sizes = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)).filter(any), min_size=1, max_size=5)


class Rig(StepRun):
    """A stream through the mode on a fake device, and its lists by key."""

    def __init__(
        self,
        kernel: FakeMegakernel,
        stream: ChainStream,
        most: int,
        cached: int = CACHED,
        ahead: bool = True,
        traced: bool = False,
        bar1: bool = True,
        **how: Any,
    ) -> None:
        device: Any = kernel.device
        mode: Any = MegakernelMode(cached=cached, ahead=ahead, bar1=bar1)
        mode.traced = traced
        super().__init__(mode, stream, most, device, **how)
        self.kernel, self.steps = kernel, mode._steps

    @property
    def kept(self) -> int:
        return len(self.steps._programs)

    def is_kept(self, batch: StepBatch) -> bool:
        return self.steps._steps.key_of(batch) in self.steps._programs

    def submit(self, batch: StepBatch) -> bool:
        """Outside a run; whether it was one launch of the interpreter."""
        before = len(self.kernel.launched)
        self.recorder.reset()
        self.mode.submit(batch, 0)
        return len(self.kernel.launched) > before

    def close(self) -> None:
        """As after a run, whose end was awaited."""
        self.device.synchronize()
        super().close()

    def prepared(self) -> Rig:
        """So that batches can be submitted."""
        self.device.start(0, self.mode)
        self.mode.start()
        return self


@pytest.fixture
def kernel() -> Iterator[FakeMegakernel]:
    with fake_megakernel() as made:
        yield made


def some_of(stream: ChainStream, first: int, stop: int) -> StepBatch:
    """A decode step of requests `first` to `stop`."""
    whole = step_of(stream, stop, 0)
    words = whole.words.reshape(whole.rows, stop, -1)[:, first:]
    return StepBatch(np.ascontiguousarray(words).reshape(-1, words.shape[2]), whole.reason, stop - first, whole.rows)


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
def test_steps_are_right_whoever_is_together(
    name: str,
    sizes: list[tuple[int, int]],
    layers: int,
    replicas: int,
    most: int,
    seed: int | None,
    cached: int,
) -> None:
    """Also where one that was made ahead is followed by others that are launched as in mode=coalesced."""
    stream = stream_of(name, sizes, layers=layers, replicas=replicas)
    with fake_megakernel() as kernel:
        run = Rig(kernel, stream, most, cached)
        for _ in range(3):
            before = len(kernel.launched)
            run.run(seed)
            run.check()
            assert sum(run.launches(rec.SIZE)) == stream.commands
            assert run.launches(rec.STRATEGY).count(Strategy.megakernel) == len(kernel.launched) - before
            assert run.kept <= cached
        run.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_requests_in_step_is_one_launch(name: str, kernel: FakeMegakernel) -> None:
    stream = stream_of(name, [(0, 6)] * 4, replicas=2)
    run = Rig(kernel, stream, 4)
    run.run()
    run.check()
    rows = len(stream.rows_of(stream.decode_kind))
    strategies, sizes = run.launches(rec.STRATEGY), run.launches(rec.SIZE)
    first = len(strategies) - 5
    assert Strategy.megakernel not in strategies[:first], "the first token's inputs lie anywhere in the table"
    assert strategies[first:] == [Strategy.megakernel] * 5
    assert sum(sizes[:first]) == 4 * rows
    assert sizes[first:] == [4 * rows] * 5
    assert run.launches(rec.SHAPE)[first:] == [-1] * 5, "of several shapes"
    assert not any(run.launches(rec.PACKED_BYTES)[first:])
    assert [int(each[:, Word.REQUESTS].max()) for each in kernel.launched] == [4] * 5
    run.close()


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_launches_are_made_ahead_of_their_commands(replicas: int, kernel: FakeMegakernel) -> None:
    """Each that follows what it followed before; at the end the last one is called off."""
    run = Rig(kernel, stream_of("linear", [(0, 12)] * 2, replicas=replicas), 2)
    for again in (False, True):
        kernel.waited = kernel.in_vain = 0
        run.run()
        run.check()
        launches = run.launches(rec.STRATEGY).count(Strategy.megakernel)
        assert launches == 11
        assert kernel.waited == launches - (1 if again else 1 + replicas)
        assert kernel.in_vain == run.mode.ahead.called_off == 1
        assert run.recorder.launch_calls == len(run.launches(rec.SIZE)) + 1
    run.close()


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_compiled_loop_admits_all_that_waits(
    replicas: int, kernel: FakeMegakernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is admitted by Python."""
    asked = asked_of_python(monkeypatch)
    stream = stream_of("linear", [(0, 12)] * 2, replicas=replicas)
    run = Rig(kernel, stream, 2)
    run.run_pumped()
    run.check()
    launches = run.launches(rec.STRATEGY).count(Strategy.megakernel)
    assert launches == 11
    assert asked == [False] * (1 + replicas)
    assert kernel.waited == launches - len(asked)
    assert kernel.in_vain == run.mode.ahead.called_off == 1
    assert kernel.device.fed_back == 1, "the first token, by a launch of its own"
    run.close()


@pytest.mark.parametrize("bar1", [True, False])
def test_where_the_word_lies_that_a_launch_waits_for(bar1: bool, kernel: FakeMegakernel) -> None:
    run = Rig(kernel, stream_of("linear", [(0, 6)] * 2), 2, bar1=bar1)
    assert run.mode.polled_words == ("GPU memory, by BAR1" if bar1 else f"host memory: {NOT_NEAR}")
    run.run()
    assert kernel.waited > 0
    run.close()


@pytest.mark.parametrize("how", [{"ahead": False}, {"traced": True}, {"sampled": True}, {"on_host": True}], ids=str)
def test_no_launch_is_made_ahead(how: dict[str, bool], kernel: FakeMegakernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a setting says so; where what is looked at is how long a launch takes; where it does not feed back."""
    if how.pop("sampled", False):
        monkeypatch.setattr(kernel.device, "unmarked_launches", 1)
    run = Rig(kernel, stream_of("linear", [(0, 6)] * 2), 2, **how)
    run.run()
    run.check()
    assert run.launches(rec.STRATEGY).count(Strategy.megakernel) == len(kernel.launched) == 5
    assert (kernel.waited, kernel.in_vain) == (0, 0)
    run.close()


def test_a_tool_that_looks_on_sees_no_launch_that_waits(
    kernel: FakeMegakernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "of nsys, and of ncu")
    assert Rig(kernel, stream_of("linear", [(0, 6)]), 1).mode.ahead is None


def test_likely_lists_are_there_before_a_run_and_none_is_made_in_it(kernel: FakeMegakernel) -> None:
    stream = stream_of("linear_epilogue", [(0, 6)] * 4, replicas=3)
    run = Rig(kernel, stream, 4)
    assert run.kept == 2 * 3, "of all and of the first alone, with each copy of the weights"
    assert all(run.is_kept(step_of(stream, size, replica)) for size in (1, 4) for replica in range(3))
    before = dict(run.steps._programs)
    run.run()
    assert run.steps._programs == before
    assert len(kernel.launched) == 5
    run.close()


def test_of_the_likely_ones_none_is_larger_than_a_batch_can_be(kernel: FakeMegakernel) -> None:
    run = Rig(kernel, stream_of("linear", [(0, 3)] * 4), 3)
    assert {int(np.asarray(each._tasks).view(TASK)["requests"][0]) for each in run.steps._programs.values()} == {1, 3}
    run.close()


def test_what_comes_again_is_one_launch_from_the_second_time_on(kernel: FakeMegakernel) -> None:
    stream = stream_of("linear_epilogue", [(0, 6)] * 4)
    run = Rig(kernel, stream, 4).prepared()
    pair = some_of(stream, 1, 3)
    assert not run.is_kept(pair)
    assert [run.submit(pair) for _ in range(4)] == [False, True, True, True]
    assert [run.submit(some_of(stream, 0, 3)), run.submit(pair)] == [False, True], "another batch is another list"
    assert kernel.launched[0][:, [Word.FIRST_REQUEST, Word.REQUESTS]].tolist() == [[1, 2]] * len(kernel.launched[0])
    run.close()


def test_what_comes_in_a_rehearsal_is_there_when_the_run_comes(kernel: FakeMegakernel) -> None:
    """No list is made in it, whose first token would wait for that."""
    stream = stream_of("linear_epilogue", [(0, 6)] * 4)
    run = Rig(kernel, stream, 4)
    run.mode.rehearses = True
    run.prepared()
    pair, other = some_of(stream, 1, 3), some_of(stream, 0, 3)
    assert run.submit(pair)
    run.mode.rehearses = False
    run.prepared()
    kept = run.kept
    assert [run.submit(pair), run.submit(other)] == [True, False]
    assert run.kept == kept
    run.close()


def test_prompts_and_requests_that_lie_unevenly_are_never_compiled(kernel: FakeMegakernel) -> None:
    """However often they come."""
    stream = stream_of("linear", [(5, 2)] * 2 + [(0, 3)] * 3)
    run = Rig(kernel, stream, 5).prepared()
    prompt = next(iter(batches(stream, 1)))
    whole = step_of(stream, 5, 0).words.reshape(len(stream.rows_of(stream.decode_kind)), 5, -1)
    words = np.ascontiguousarray(whole[:, [0, 1, 4]])
    uneven = StepBatch(words.reshape(-1, words.shape[2]), prompt.reason, 3, len(words))
    kept = run.kept
    assert not any(run.submit(batch) for batch in (prompt, uneven) for _ in range(4))
    assert run.kept == kept
    run.close()


def test_a_stream_of_prompts_alone_compiles_nothing_ahead(kernel: FakeMegakernel) -> None:
    run = Rig(kernel, stream_of("linear", [(5, 0), (3, 0)]), 2)
    assert run.kept == 0
    run.run()
    run.check()
    assert kernel.launched == []
    run.close()


def test_the_list_used_longest_ago_makes_room(kernel: FakeMegakernel) -> None:
    stream = stream_of("linear", [(0, 6)] * 4)
    run = Rig(kernel, stream, 4, cached=2).prepared()
    everyone, alone, pair = step_of(stream, 4, 0), step_of(stream, 1, 0), some_of(stream, 1, 3)
    assert [run.is_kept(batch) for batch in (everyone, alone, pair)] == [True, True, False]
    assert [run.submit(everyone), run.submit(alone)] == [True, True]
    assert [run.submit(pair), run.submit(pair)] == [False, True]
    assert [run.is_kept(batch) for batch in (everyone, alone, pair)] == [False, True, True]
    assert run.submit(alone)
    assert [run.submit(everyone), run.submit(everyone)] == [False, True], "it has to come twice again"
    assert [run.is_kept(batch) for batch in (everyone, alone, pair)] == [True, True, False]
    run.close()


@pytest.mark.parametrize("cached", [1, 2])
def test_no_list_is_freed_while_a_launch_uses_it(cached: int, kernel: FakeMegakernel) -> None:
    """Its memory would be given to the next one, whose list would then be run in its place."""
    stream = stream_of("linear", [(0, 6)] * 5)
    run = Rig(kernel, stream, 5, cached).prepared()
    for _ in range(3):
        for size in range(1, 6):
            run.submit(some_of(stream, 0, size))
    assert len(kernel.launched) > 8
    assert kernel.memory.freed_early == []
    run.close()


def test_what_was_seen_is_forgotten_in_time(kernel: FakeMegakernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launchopt.devices.megakernel.MOST_SEEN", 2)
    stream = stream_of("linear", [(0, 6)] * 5)
    run = Rig(kernel, stream, 5).prepared()
    first, second, third = (some_of(stream, 1, stop) for stop in (2, 3, 4))
    assert not any(run.submit(batch) for batch in (first, second, third, first))
    assert run.submit(third)
    run.close()


def test_with_an_lm_head_and_sampling(kernel: FakeMegakernel) -> None:
    stream = stream_of("linear", [(3, 3), (0, 4), (0, 4)], vocab=50)
    run = Rig(kernel, stream, 3, sampling=Sampling(SamplingKind.greedy))
    run.run()
    run.check()
    assert kernel.rows == [each[0, Word.REQUESTS] for each in kernel.launched] != []
    run.close()


# -- Blocks that come in pairs


@pytest.mark.parametrize(
    ("multiprocessors", "clusters", "split"), [(4, 2, 1), (4, 3, 1), (4, 1, 0), (4, 0, 0), (3, 2, 0), (2, 1, 1)]
)
def test_pairs_of_blocks_share_gemms_where_all_are_there_at_once(
    multiprocessors: int, clusters: int, split: int
) -> None:
    """Of an odd number one would have no other. Lists of one request have nothing to share."""
    program = linear_program([(64, 2048), (2048, 64)])
    stream = ChainStream(program, 1, requests_of([(0, 3)] * 16), Dtype.fp32, 1)
    with fake_megakernel(multiprocessors, clusters) as kernel:
        run = Rig(kernel, stream, 16)
        assert sorted(kernel.split) == [0, split]
        run.run()
        run.check()
        assert [int(each[0, Word.REQUESTS]) for each in kernel.launched] == [16, 16]
        run.close()


# -- What a launch feeds back itself


@pytest.mark.parametrize("vocab", [None, 50])
@pytest.mark.parametrize("kind", [SamplingKind.greedy, SamplingKind.top_k])
def test_a_launch_of_whole_steps_feeds_them_back(vocab: int | None, kind: SamplingKind, kernel: FakeMegakernel) -> None:
    """And nothing else is launched for it; what is launched as in mode=coalesced is fed back as there."""
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
    assert kernel.device.fed_back == 6
    run.close()


def test_more_launches_than_there_are_stages(kernel: FakeMegakernel) -> None:
    run = Rig(kernel, stream_of("linear", [(0, STAGES + 9)]), 1)
    for _ in range(2):
        run.run()
        run.check()
    assert kernel.rows[-STAGES - 8 :] == [1] * (STAGES + 8)
    run.close()


# -- What it says of itself, and its setting


def test_what_it_takes() -> None:
    stream = stream_of("layer", [(2, 3)])
    assert mode_class("megakernel") is MegakernelMode
    assert MegakernelMode.refusal("cuda", stream) is None
    assert "needs a GPU" in str(MegakernelMode.refusal("cpu", stream))
    independent = gemv(8, 1, 8, 4, Dtype.fp16, 4, False, 0)
    assert "takes whole steps" in str(MegakernelMode.refusal("cuda", independent))


def test_how_many_lists_are_kept_is_a_setting() -> None:
    config = configured("mode=megakernel", "mode.cached=7", "workload=decode", "model=tiny")
    assert config.mode.options == {"cached": 7, "ahead": True, "bar1": True}
    assert mode_settings("megakernel").options == {"cached": CACHED, "ahead": True, "bar1": True}
    with pytest.raises(ConfigError, match=r"mode\.cached=0: must be from 1 to 4096"):
        configured("mode=megakernel", "mode.cached=0", "workload=decode", "model=tiny")
