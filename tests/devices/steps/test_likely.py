"""Steps that are prepared before a run."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from support.steps.programs import stream_of
from support.steps.step_runs import batches

from launchopt.batching.batch import StepBatch
from launchopt.command import LOW_HALF, RecordWord
from launchopt.devices.steps.likely import copies_used, likely_steps, most_kept, padded_sizes
from launchopt.devices.steps.stages import step_of


def weights_of(batch: StepBatch) -> tuple[int, list[int]]:
    """Return the number of requests, and the slots of their weights."""
    return batch.size, (batch.words[:, RecordWord.SLOTS_AB] & LOW_HALF).tolist()


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 9), st.integers(1, 30))
def test_what_requests_in_step_ask_for_comes_first(requests: int, tokens: int, replicas: int, bound: int) -> None:
    stream = stream_of("linear", [(0, tokens)] * requests, replicas=replicas)
    likely = likely_steps(stream, requests, bound)
    copies = min(tokens, replicas)
    assert copies_used(stream) == copies
    assert most_kept(stream, bound) == max(bound, copies)
    assert len(likely) == len(set(likely)) == min(bound, copies * (2 if requests > 1 else 1))
    asked = [weights_of(batch) for batch in batches(stream, requests)]
    made = [weights_of(step_of(stream, *each)) for each in likely]
    assert made[:copies] == asked[: min(copies, bound)]
    assert bound < copies or all(each in made for each in asked)


@given(st.integers(1, 5), st.integers(1, 5))
def test_no_more_requests_than_there_are_and_than_a_batch_can_have(requests: int, most: int) -> None:
    stream = stream_of("linear", [(0, 2)] * requests, replicas=1)
    assert likely_steps(stream, most, 9) == list(dict.fromkeys([(min(requests, most), 0), (1, 0)]))


def test_sizes_are_powers_of_two_and_the_limit() -> None:
    assert [padded_sizes(limit) for limit in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


@given(st.integers(1, 5000))
def test_padding_is_less_than_what_is_asked_for(limit: int) -> None:
    sizes = padded_sizes(limit)
    assert (sizes[0], sizes[-1]) == (1, limit)
    assert sizes == sorted(set(sizes))
    assert all(not size & (size - 1) for size in sizes[:-1])
    assert all(after <= 2 * before for before, after in pairwise(sizes))
