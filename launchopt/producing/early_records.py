"""Push records of a request's next steps before these steps may be issued (`Schedule.ahead`).

All records of the next step but the last go into the ring once the consumer has flushed the request's previous step.
No launch can begin without that last record, which the driver pushes when it issues the step. If several steps are
issued together, the last record of the last of them is held back.
"""

from __future__ import annotations

from launchopt.command import RecordWord
from launchopt.native import compiled, load_acquire, monotonic_ns
from launchopt.producing.prepared_steps import (
    NOBODY,
    Ahead,
    DriverSetting,
    ProgressColumn,
    ReadyColumn,
    StreamArrays,
    is_prepared,
    kind_of,
    prepare_step,
    push_step,
    under_way,
)
from launchopt.queue.ring import free_slots
from launchopt.queue.segment import HeaderWord, RingWords
from launchopt.records import GOES_ON
from launchopt.streams.chains.chain_table import NO_PROMPT, ChainColumn
from launchopt.types import Int, Table


@compiled
def steps_together(request: Int, stream: StreamArrays, progress: Table) -> Int:
    """Return how many steps of a request are issued together next. Only decode steps are, and not the first step."""
    settings, table, step = stream.settings, stream.table, progress[request, ProgressColumn.ISSUED]
    most = settings[DriverSetting.TOGETHER]
    if most == 1 or step == 0 or kind_of(request, step, table, settings) != settings[DriverSetting.DECODE_KIND]:
        return 1
    prompt_steps = table[request, ChainColumn.FULL_CHUNKS] + (table[request, ChainColumn.REST_KIND] != NO_PROMPT)
    return min(most, prompt_steps + table[request, ChainColumn.DECODES] - step)


@compiled
def _is_last(request: Int, stream: StreamArrays, progress: Table) -> bool:
    """Return whether the next step of a request is the last of the steps that are issued together next."""
    return bool(progress[request, ProgressColumn.EARLY_STEPS] + 1 == steps_together(request, stream, progress))


@compiled
def lacks_last(request: Int, stream: StreamArrays, progress: Table, ready: Table) -> bool:
    """Return whether all records of the steps that are issued together next were pushed early, but the last."""
    if not is_prepared(request, progress, ready):
        return False  # another request has taken the place
    early, count = progress[request, ProgressColumn.EARLY], ready[request & (len(ready) - 1), ReadyColumn.COUNT]
    return bool(early > 0 and early + 1 == count and _is_last(request, stream, progress))


@compiled
def push_early(ring: RingWords, most: Int, seq: Int, stream: StreamArrays, progress: Table, ahead: Ahead) -> Int:
    """Push up to `most` records of one prepared step whose previous step was flushed; return their number.

    The last record of the steps that are issued together is not pushed. The ring must have space for all other records
    of the step, and for one more record per place, so that early records never delay a last record. `progress` keeps
    the number of early records, because another request may take the place.
    """
    blocks, ready = ahead.blocks, ahead.ready
    left = load_acquire(ring.header, HeaderWord.STEPS_LEFT)
    for place in range(len(ready)):
        request = ready[place, ReadyColumn.REQUEST]
        if request == NOBODY or ready[place, ReadyColumn.IS_ISSUED] != 0:
            continue
        if progress[request, ProgressColumn.ENDED_AT] > left:
            continue
        is_last, count = _is_last(request, stream, progress), ready[place, ReadyColumn.COUNT]
        first, stop = progress[request, ProgressColumn.EARLY], count - 1 if is_last else count
        wanted = stop - first + len(ready)
        if first < stop and free_slots(ring.header, ring.data, wanted) == wanted:
            stop = min(stop, first + most)
            if not is_last:
                blocks[place, count - 1, RecordWord.K_OP_DTYPE] |= GOES_ON
            push_step(ring.header, ring.data, blocks[place, first:stop], seq, monotonic_ns())
            progress[request, ProgressColumn.EARLY] = stop
            if stop == count:
                _go_on(request, count, stream, progress, ahead)
            return stop - first
    return 0


@compiled
def _go_on(request: Int, count: Int, stream: StreamArrays, progress: Table, ahead: Ahead) -> None:
    """Record that all `count` records of a request's prepared step were pushed early; prepare the step behind it."""
    own = progress[request]
    own[ProgressColumn.EARLY], own[ProgressColumn.COMMANDS] = 0, own[ProgressColumn.COMMANDS] + count
    own[ProgressColumn.EARLY_STEPS] += 1
    ahead_by = under_way(request, progress) + own[ProgressColumn.EARLY_STEPS]
    token = own[ProgressColumn.TOKENS_DONE] + ahead_by
    prepare_step(request, own[ProgressColumn.STEPS] + ahead_by, token, stream, progress, ahead)
