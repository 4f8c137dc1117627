"""Which GPUs of several traces work together, and how long they waited for each other.

In: the GPUs of each trace that have collectives. Out: `Found`: a table of each group, and a sentence on each trace, GPU
or rank that is in no table.

Traces with a rank are of one job if each rank occurs once. Traces without one are taken for one job. If the collectives
of all its GPUs do not match, those of the GPUs of one trace may, or those of all traces with one GPU. They have tables
of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from launchopt.analysis.collectives.gpus import Calls, Group, TimedFile
from launchopt.analysis.collectives.waits import Collectives, waits

_SHOWN = 8  # GPUs or ranges of ranks in one sentence


class Found(NamedTuple):
    """The tables, and sentences on what is in none."""

    tables: list[Collectives]
    notes: list[str]


class _Member(NamedTuple):
    """A GPU of a group. file: number of its trace."""

    name: str
    file: int
    calls: Calls


def collectives(files: Sequence[TimedFile]) -> Found:
    """Return the collectives of GPUs that work together."""
    once = {file.source: file for file in reversed(files)}
    kept = [file for file in files if once[file.source] is file]
    again = [file for file in files if file.gpus and once[file.source] is not file]
    notes = [f"{file.name} is the same file as {once[file.source].name}: it counts once" for file in again]
    having = [file for file in kept if file.gpus]
    if not having or (len(files) == 1 and len(having[0].gpus) == 1):
        return Found([], [])
    found = Found([], notes)
    of_jobs = [file for file in having if file.job is not None]
    if of_jobs and (why := _no_job(of_jobs)):
        found.notes.append(f"no wait is known of traces that are not of one job: {why}")
        of_jobs = []
    for of_one in (of_jobs, [file for file in having if file.job is None]):
        if of_one:
            _add_job(found, of_one, has_others=len(of_one) < len(having))
    found.notes.extend(f"{file.name} has no collectives" for file in kept if not file.gpus)
    return found


def _no_job(files: Sequence[TimedFile]) -> str | None:
    """Return why traces with ranks are not of one job; None if they are."""
    jobs = [(file.name, file.job) for file in files if file.job is not None]
    for (one, (_, size)), (other, (_, other_size)) in pairwise(jobs):
        if size != other_size:
            return f"{one} is of a job of {size:,} ranks, {other} of one of {other_size:,}"
    seen: dict[int, str] = {}
    for name, (rank, _) in jobs:
        if rank in seen:
            return f"{seen[rank]} and {name} are both of rank {rank}"
        seen[rank] = name
    return None


def _add_job(found: Found, files: Sequence[TimedFile], *, has_others: bool) -> None:
    """Add the tables of one job, and notes. has_others: whether other traces have collectives."""
    if len(files) == 1 and len(files[0].gpus) == 1:
        other = "no other trace with collectives is of its job" if has_others else "no other trace has collectives"
        found.notes.append(f"{files[0].name} is in no table: {other}")
        return
    groups = _groups(files)
    found.notes.extend(_missing(files, groups))
    alone = []
    for group, members in groups.items():
        of = f" of {group.label}" if group.label else ""
        if len(members) == 1:
            alone.append(f"{members[0].name}{of and f' ({group.label})'}")
        else:
            _add_group(found, group.label, of, members)
    if alone:
        shown = ", ".join(alone[:_SHOWN]) + (f" and {len(alone) - _SHOWN:,} more" if len(alone) > _SHOWN else "")
        found.notes.append(f"in no table, as no other GPU here has collectives of the same group: {shown}")
    found.notes.extend(_equal(files))


def _groups(files: Sequence[TimedFile]) -> dict[Group, list[_Member]]:
    """Return the GPUs of each group. Their times count from one time, if all traces say from which theirs do."""
    bases = [file.base_ns for file in files]
    found: dict[Group, list[_Member]] = {}
    for number, file in enumerate(files):
        later_ns = file.base_ns - min(bases) if all(bases) else 0
        for gpu in file.gpus:
            for group, calls in gpu.groups.items():
                times = replace(calls, starts_ns=calls.starts_ns + later_ns, ends_ns=calls.ends_ns + later_ns)
                found.setdefault(group, []).append(_Member(f"{gpu.name} of {file.name}", number, times))
    return found


def _add_group(found: Found, label: str | None, of: str, members: Sequence[_Member]) -> None:
    together = _waits(label, members)
    if isinstance(together, Collectives):
        found.tables.append(together)
        return
    by_file: dict[int, list[_Member]] = {}
    for member in members:
        by_file.setdefault(member.file, []).append(member)
    alone = [each[0] for each in by_file.values() if len(each) == 1]
    parts = [part for part in (*by_file.values(), alone) if len(part) > 1]
    tables = [] if parts == [members] else [_waits(label, part) for part in parts]
    kept = [table for table in tables if isinstance(table, Collectives)]
    found.tables.extend(kept)
    shown = {gpu.gpu for table in kept for gpu in table.gpus}
    left = [member.name for member in members if member.name not in shown]
    if not kept:
        found.notes.append(f"collectives{of} of the GPUs are not the same ones, so no wait is known: {together}")
    elif left:
        found.notes.append(f"{_listed(left)} in no table{of}: collectives are not the same ones: {together}")
    else:
        found.notes.append(f"not all GPUs{of} are in one table: collectives are not the same ones: {together}")


def _waits(label: str | None, members: Sequence[_Member]) -> Collectives | str:
    return waits(label, [each.name for each in members], [each.calls for each in members])


def _missing(files: Sequence[TimedFile], groups: Iterable[Group]) -> Iterator[str]:
    """Yield a sentence if a rank of the job, or of the groups if all name theirs, has no trace."""
    jobs = [file.job for file in files if file.job is not None]
    if not jobs:
        return
    members = [group.members for group in groups]
    size = jobs[0].world_size
    wanted = frozenset(range(size)).union(*(each or () for each in members))
    if all(each is not None for each in members):
        wanted = frozenset().union(*(each or () for each in members))
    missing = sorted(wanted - {job.rank for job in jobs})
    if missing:
        yield f"no trace of {_ranks(missing)} of {size:,}: a wait for a missing rank counts as transfer"


def _ranks(numbers: Sequence[int]) -> str:
    """Return the numbers as text, neighbours as a range."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    texts = [str(low) if low == high else f"{low} to {high}" for low, high in spans]
    more = ", ..." if len(texts) > _SHOWN else ""
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(texts[:_SHOWN])}{more}"


def _equal(files: Sequence[TimedFile]) -> Iterator[str]:
    """Yield a sentence on traces of the same GPUs whose collectives began and ended at the same ns."""
    seen: dict[tuple[object, ...], str] = {}
    for file in files:
        every = [(gpu.name, calls) for gpu in file.gpus for calls in gpu.groups.values()]
        times = file.base_ns, *((name, calls.starts_ns.tobytes(), calls.ends_ns.tobytes()) for name, calls in every)
        if times in seen:
            yield f"{seen[times]} and {file.name} have the same times: are they copies of one trace?"
        seen.setdefault(times, file.name)


def _listed(names: Sequence[str]) -> str:
    return f"{names[0]} is" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} are"
