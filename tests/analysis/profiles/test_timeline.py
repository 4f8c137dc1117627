"""Recordings as events of the Chrome trace format."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.results.recorded_runs import BATCH, COMMANDS, REPEATS, command_rows, kernel_rows, launch_rows

from launchopt.analysis.collectives.all_reduces import all_reduce_kernels, all_reduces
from launchopt.analysis.profiles.timeline import Event, Size, Timeline, kept_launches
from launchopt.recording import results
from launchopt.recording.results import Row

EVERYTHING = {(mode, repeat): COMMANDS // size for mode, size in BATCH.items() for repeat in range(REPEATS)}


def events(**options: Any) -> list[Event]:
    timeline = Timeline(EVERYTHING, **options)
    made = [*timeline.processes(), *timeline.launches(launch_rows("run")), *timeline.commands(command_rows("run"))]
    return [*made, *(timeline.kernels(kernel_rows("run")) if options.get("has_kernels") else [])]


def of(found: list[Event], phase: str, **columns: Any) -> list[Event]:
    return [e for e in found if e["ph"] == phase and all(e[key] == value for key, value in columns.items())]


def test_every_row_is_shown_once_and_times_are_exact() -> None:
    found = events(has_kernels=True)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in of(found, "M", name="thread_name")}
    tracks: dict[str, int] = defaultdict(int)
    for event in of(found, "X"):
        tracks[names[event["pid"], event["tid"]]] += 1
    launches = len(launch_rows("run"))
    assert tracks == {
        "host: launch calls": launches,
        "GPU, by events": launches,
        "host: CUDA API (CUPTI)": launches,
        "GPU stream 7": 2 * launches,
        "GPU stream 9": 1,
    }
    first = of(found, "X", name="single 64x1x8192 x1")[0]
    assert (first["ts"], first["dur"]) == (1.0, 5.0)
    assert first["args"]["batch_size"] == 1


def test_an_arrow_leads_from_each_call_to_each_kernel_of_it() -> None:
    found = events(has_kernels=True)
    tails, heads = ({e["id"]: e for e in of(found, phase)} for phase in "sf")
    assert tails.keys() == heads.keys()
    assert len(tails) == 2 * len(launch_rows("run"))
    slices = of(found, "X")
    for end in (*tails.values(), *heads.values()):
        held = [s for s in slices if (s["pid"], s["tid"]) == (end["pid"], end["tid"])]
        assert any(s["ts"] <= end["ts"] <= s["ts"] + s["dur"] for s in held), "an arrow begins and ends in a slice"
    assert all(e["bp"] == "e" for e in heads.values())


def test_without_a_tracer_the_arrow_leads_from_the_launch_call() -> None:
    assert len(of(events(), "s")) == len(of(events(), "f")) == len(launch_rows("run"))


def test_a_wait_begins_and_ends_with_one_id() -> None:
    found = events()
    begun = {(e["pid"], e["id2"]["local"]): e["ts"] for e in of(found, "b")}
    ended = {(e["pid"], e["id2"]["local"]): e["ts"] for e in of(found, "e")}
    assert len(begun) == len(command_rows("run"))
    assert begun.keys() == ended.keys()
    assert all(ended[key] >= begun[key] for key in begun)


def test_a_launch_that_was_not_timed_has_no_slice_on_the_device() -> None:
    rows = [{**row, "device_start_ns": None, "device_end_ns": None} for row in launch_rows("run")]
    made = list(Timeline(EVERYTHING).launches(rows))
    assert len(of(made, "X")) == len(rows)
    assert not of(made, "s")


def on_gpus(rows: list[Row], late_ns: int) -> list[Row]:
    """The same launches on GPUs 4 and 7, each an all-reduce that begins later on the second one."""
    names = ("submit_start_ns", "submit_end_ns", "device_start_ns")
    later = [row | {name: row[name] + late_ns for name in names} for row in rows]
    return [row | {"gpu": gpu, "op": "all_reduce"} for gpu, own in ((4, rows), (7, later)) for row in own]


def test_each_gpu_has_tracks_of_its_own_and_an_all_reduce_its_wait_and_its_transfer() -> None:
    rows = on_gpus([row for row in launch_rows("run") if (row["mode"], row["repeat"]) == ("batched", 1)], 1000)
    reduced = all_reduces(pa.Table.from_pylist(rows, schema=results.LAUNCHES).to_batches())
    found = list(Timeline(EVERYTHING, reduced=reduced).launches(rows))
    names = {e["tid"]: e["args"]["name"] for e in of(found, "M", name="thread_name")}
    assert set(names.values()) == {
        *("GPU 4, host: launch calls", "GPU 7, host: launch calls", "GPU 4, by events", "GPU 7, by events")
    }
    assert len({e["pid"] for e in found}) == 1, "GPUs of one repeat are side by side"
    slices = [e for e in of(found, "X") if names[e["tid"]].endswith("by events")]
    for gpu in (4, 7):
        own = [e for e in slices if names[e["tid"]].startswith(f"GPU {gpu}")]
        whole = [e for e in own if e["name"].startswith("all_reduce ")]
        assert len(whole) == len(rows) // 2
        for each in whole:
            inside = [e for e in own if e is not each and each["ts"] <= e["ts"] < each["ts"] + each["dur"]]
            assert {e["name"] for e in inside} <= {"wait for the last GPU", "transfer"}
            assert sum(e["dur"] for e in inside) == pytest.approx(each["dur"])
            assert each["args"]["wait_us"] + each["args"]["transfer_us"] == pytest.approx(each["dur"])


def test_kernels_and_calls_of_two_gpus_are_apart() -> None:
    """Each process has ids of its own, so the same ids mean other calls."""
    one = [row for row in kernel_rows("run") if (row["mode"], row["repeat"], row["kind"]) == ("batched", 1, "kernel")]
    rows = [row | {"gpu": gpu, "name": "ALL_REDUCE"} for gpu in (4, 7) for row in one]
    reduced = all_reduce_kernels(pa.Table.from_pylist(rows, schema=results.KERNELS).to_batches())
    found = list(Timeline(EVERYTHING, has_kernels=True, reduced_kernels=reduced).kernels(rows))
    names = {e["tid"]: e["args"]["name"] for e in of(found, "M", name="thread_name")}
    assert set(names.values()) == {
        f"GPU {gpu}{track}" for gpu in (4, 7) for track in (" stream 7", ", host: CUDA API (CUPTI)")
    }
    calls = [names[e["tid"]] for e in of(found, "X", name="cuLaunchKernelEx")]
    assert len(calls) == 2 * calls.count("GPU 4, host: CUDA API (CUPTI)") == len(rows) // 2
    kernels = of(found, "X", name="ALL_REDUCE")
    assert all(e["args"]["wait_us"] + e["args"]["transfer_us"] == pytest.approx(e["dur"]) for e in kernels)
    assert len(kernels) == len(of(found, "X", name="transfer")) == len(rows)


def test_a_launch_that_is_its_call_has_one_slice() -> None:
    """As on the cpu device, whose calls are synchronous."""
    rows = [row | {"device_start_ns": row["submit_start_ns"]} for row in launch_rows("run")]
    made = list(Timeline(EVERYTHING).launches(rows))
    assert len(of(made, "X")) == len(rows)
    assert not of(made, "s")


def test_what_is_cut_is_cut_in_every_table_alike() -> None:
    cut = {("baseline", 0): 3}
    timeline = Timeline(cut, cut, has_kernels=True)
    made = [
        *timeline.launches(launch_rows("run")),
        *timeline.commands(command_rows("run")),
        *timeline.kernels(kernel_rows("run")),
    ]
    assert {e["args"]["launch"] for e in made if "launch" in e.get("args", {})} == {0, 1, 2}
    assert timeline.rows == 3 + 3 + 6
    assert not of(made, "X", name="memcpy"), "no launch of ours says whether it belongs to what is kept"


SIZES = st.dictionaries(
    st.tuples(st.sampled_from(["baseline", "batched", "graph"]), st.integers(0, 3)),
    st.tuples(st.integers(1, 10**6), st.integers(1, 10**4)).map(lambda size: Size(max(size), min(size))),
    min_size=1,
)


@given(SIZES, st.integers(1, 10**7))
def test_no_more_is_kept_than_there_is_and_all_where_it_fits(sizes: dict[tuple[str, int], Size], limit: int) -> None:
    kept = kept_launches(sizes, limit)
    assert all(1 <= kept[group] <= size.launches for group, size in sizes.items())
    total = sum(size.rows for size in sizes.values())
    shown = sum(size.rows * kept[group] / size.launches for group, size in sizes.items())
    if total <= limit:
        assert shown == total
    else:
        least = sum(size.rows / size.launches for size in sizes.values())
        assert shown <= limit + least + 1e-6


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50)), max_size=40))
def test_slices_of_one_thread_never_overlap(spans: list[tuple[int, int]]) -> None:
    template = kernel_rows("run")[0]
    rows = [{**template, "start_ns": start, "end_ns": start + length, "api": None} for start, length in spans]
    found = of(list(Timeline(EVERYTHING, has_kernels=True).kernels(rows)), "X")
    assert len(found) == len(spans)
    threads: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in found:
        threads[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for held in threads.values():
        held.sort()
        assert all(one[1] <= other[0] + 1e-9 for one, other in pairwise(held))
