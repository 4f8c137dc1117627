"""The key of a batch has the slots that determine its addresses, whatever batches came before."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.steps.programs import PROGRAMS, stream_of
from support.steps.step_runs import batches

from launchopt.batching.batch import StepBatch
from launchopt.command import RecordWord
from launchopt.devices.steps.keys import MOST_KEPT, StepKeys

request_sizes = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)).filter(any), min_size=1, max_size=5)


def slots_of(batch: StepBatch, probe: int) -> bytes:
    words, size = batch.words, batch.size
    own, weights = words[::size, RecordWord.SLOTS_AB], words[probe * size : (probe + 1) * size, RecordWord.SLOTS_AB]
    return own.tobytes() + weights.tobytes() + words[:size, RecordWord.SLOT_C_REQUEST].tobytes()


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from([*PROGRAMS]),
    sizes=request_sizes,
    replicas=st.integers(1, 3),
    most=st.integers(1, 4),
    seed=st.none() | st.integers(0, 99),
)
def test_a_key_is_the_slots_of_its_batch(
    name: str, sizes: list[tuple[int, int]], replicas: int, most: int, seed: int | None
) -> None:
    """This holds if the previous batch had the same key, or differed in one slot."""
    keys = StepKeys(lambda batch: batch.rows // 2)
    for batch in batches(stream_of(name, sizes, replicas=replicas), most, seed):
        for _ in range(2):
            assert keys.key_of(batch) == slots_of(batch, batch.rows // 2)


def test_a_key_is_not_made_again() -> None:
    keys = StepKeys(lambda batch: 0)
    *_, before, last = batches(stream_of("linear", [(0, 4)] * 3), 3)
    assert before is not last
    assert keys.key_of(before) is keys.key_of(last)


def test_no_more_is_kept_than_may_be() -> None:
    keys = StepKeys(lambda batch: 0)
    (batch,) = batches(stream_of("linear", [(0, 1)]), 1)
    for slot in range(MOST_KEPT + 5):
        batch.words[0, RecordWord.SLOTS_AB] = slot
        assert keys.key_of(batch) == slots_of(batch, 0)
        assert len(keys._last) <= MOST_KEPT
