"""Lists of mode=megakernel on the host: when they are compiled, kept and dropped."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.megakernel.fake_megakernel import FakeMegakernel, fake_megakernel
from support.megakernel.megakernel_rigs import Rig, some_of
from support.steps.programs import stream_of
from support.steps.step_runs import batches

from launchopt.batching.batch import StepBatch
from launchopt.devices.instructions.words import Word
from launchopt.devices.steps.stages import step_of
from launchopt.kernels.shared_megakernel import TASK


@pytest.fixture
def kernel() -> Iterator[FakeMegakernel]:
    with fake_megakernel() as made:
        yield made


def test_likely_lists_are_compiled_before_a_run(kernel: FakeMegakernel) -> None:
    stream = stream_of("linear_epilogue", [(0, 6)] * 4, replicas=3)
    run = Rig(kernel, stream, 4)
    assert run.kept == 2 * 3, "all requests and the first one alone, for each copy of the weights"
    assert all(run.is_kept(step_of(stream, size, replica)) for size in (1, 4) for replica in range(3))
    before = dict(run.steps._programs)
    run.run()
    assert run.steps._programs == before
    assert len(kernel.launched) == 5
    run.close()


def test_likely_lists_fit_in_a_batch(kernel: FakeMegakernel) -> None:
    run = Rig(kernel, stream_of("linear", [(0, 3)] * 4), 3)
    assert {int(np.asarray(each._tasks).view(TASK)["requests"][0]) for each in run.steps._programs.values()} == {1, 3}
    run.close()


def test_a_repeated_batch_is_one_launch(kernel: FakeMegakernel) -> None:
    stream = stream_of("linear_epilogue", [(0, 6)] * 4)
    run = Rig(kernel, stream, 4).started()
    pair = some_of(stream, 1, 3)
    assert not run.is_kept(pair)
    assert [run.submit(pair) for _ in range(4)] == [False, True, True, True]
    assert [run.submit(some_of(stream, 0, 3)), run.submit(pair)] == [False, True], "another batch is another list"
    assert kernel.launched[0][:, [Word.FIRST_REQUEST, Word.REQUESTS]].tolist() == [[1, 2]] * len(kernel.launched[0])
    run.close()


def test_lists_of_the_warm_up_run_are_kept(kernel: FakeMegakernel) -> None:
    """The run then compiles no list, which would delay its first token."""
    stream = stream_of("linear_epilogue", [(0, 6)] * 4)
    run = Rig(kernel, stream, 4)
    run.started(warm_up=True)
    pair, other = some_of(stream, 1, 3), some_of(stream, 0, 3)
    assert run.submit(pair)
    run.started()
    kept = run.kept
    assert [run.submit(pair), run.submit(other)] == [True, False]
    assert run.kept == kept
    run.close()


def test_prompts_and_requests_that_lie_unevenly_are_never_compiled(kernel: FakeMegakernel) -> None:
    """This holds however often they appear."""
    stream = stream_of("linear", [(5, 2)] * 2 + [(0, 3)] * 3)
    run = Rig(kernel, stream, 5).started()
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
    run = Rig(kernel, stream, 4, cached=2).started()
    everyone, alone, pair = step_of(stream, 4, 0), step_of(stream, 1, 0), some_of(stream, 1, 3)
    assert [run.is_kept(batch) for batch in (everyone, alone, pair)] == [True, True, False]
    assert [run.submit(everyone), run.submit(alone)] == [True, True]
    assert [run.submit(pair), run.submit(pair)] == [False, True]
    assert [run.is_kept(batch) for batch in (everyone, alone, pair)] == [False, True, True]
    assert run.submit(alone)
    assert [run.submit(everyone), run.submit(everyone)] == [False, True], "a dropped batch must appear twice again"
    assert [run.is_kept(batch) for batch in (everyone, alone, pair)] == [True, True, False]
    run.close()


@pytest.mark.parametrize("cached", [1, 2])
def test_no_list_is_freed_while_a_launch_uses_it(cached: int, kernel: FakeMegakernel) -> None:
    """Otherwise the next list could get its memory, and the launch would run the wrong list."""
    stream = stream_of("linear", [(0, 6)] * 5)
    run = Rig(kernel, stream, 5, cached).started()
    for _ in range(3):
        for size in range(1, 6):
            run.submit(some_of(stream, 0, size))
    assert len(kernel.launched) > 8
    assert kernel.memory.freed_early == []
    run.close()


def test_old_batches_are_forgotten(kernel: FakeMegakernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launchopt.devices.megakernel.launcher.MOST_SEEN", 2)
    stream = stream_of("linear", [(0, 6)] * 5)
    run = Rig(kernel, stream, 5).started()
    first, second, third = (some_of(stream, 1, stop) for stop in (2, 3, 4))
    assert not any(run.submit(batch) for batch in (first, second, third, first))
    assert run.submit(third)
    run.close()
