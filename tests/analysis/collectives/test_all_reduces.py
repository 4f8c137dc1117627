"""Waits and transfers of all-reduces, from launches whose every time is known."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchopt.analysis.collectives.all_reduces import (
    NEEDED,
    NEEDED_OF_KERNELS,
    AllReduces,
    all_reduce_kernels,
    all_reduces,
)
from launchopt.analysis.skew import skew_rows, skews, without_times
from launchopt.recording.columns import KERNELS, LAUNCHES

SCHEMA = pa.schema([LAUNCHES.field(name) for name in NEEDED])
MODE = "engine"
Span = tuple[int, int]


def launch(gpu: int | None, number: int, span: Span | None, *, is_gpu: bool = True, **changed: Any) -> dict[str, Any]:
    """A row of launches.parquet. span: on the device; None: it was not timed."""
    start, end = span or (None, None)
    called_ns = 7 if is_gpu else start
    times = {"submit_start_ns": called_ns, "device_start_ns": start, "device_end_ns": end}
    return {"mode": MODE, "repeat": 0, "gpu": gpu, "launch": number, "op": "all_reduce"} | times | changed


def found(*rows: dict[str, Any], size: int = 1000) -> dict[tuple[str, int], AllReduces]:
    table = pa.Table.from_pylist(list(rows), schema=SCHEMA)
    return all_reduces(iter(table.to_batches(max_chunksize=size)))


def on_two(spans: list[tuple[Span | None, Span | None]], **options: Any) -> list[dict[str, Any]]:
    return [
        launch(gpu, 3 * number, pair[at], **options)
        for at, gpu in enumerate((4, 7))
        for number, pair in enumerate(spans)
    ]


def test_who_comes_first_waits_until_the_last_one_is_there() -> None:
    each = found(*on_two([((100, 190), (150, 185)), ((300, 330), (280, 340))], is_gpu=False))[MODE, 0]
    assert (each.gpus, each.asked, each.error_ns, each.offsets_ns) == ((4, 7), 2, 0, (0, 0))
    assert each.waits_ns.tolist() == [[50, 0], [0, 20]]
    assert each.transfers_ns.tolist() == [[40, 30], [35, 40]]
    assert each.launches.tolist() == [[0, 3], [0, 3]]


TRUE = st.lists(st.tuples(*(st.integers(0, 5000),) * 2, *(st.integers(900, 4000),) * 2), min_size=1, max_size=30)


@given(TRUE, st.integers(-50_000, 50_000))
def test_clocks_that_differ_are_brought_together_within_the_error_that_is_given(
    times: list[tuple[int, int, int, int]], late_ns: int
) -> None:
    """Arrivals of both GPUs, and their transfers; the clock of the second one is late."""
    spans: list[tuple[Span | None, Span | None]] = []
    for number, (one, other, *transfers) in enumerate(times):
        arrived = np.array([one, other]) + 100_000 * number
        ends = arrived.max() + np.array(transfers)
        spans.append(((arrived[0], ends[0]), (arrived[1] - late_ns, ends[1] - late_ns)))
    each = found(*on_two(spans))[MODE, 0]
    assert abs(each.offsets_ns[1] - late_ns) <= each.error_ns
    assert (each.transfers_ns >= -1).all(), "none ends before the last GPU has begun"
    truly = np.array([(max(one, other) - one, max(one, other) - other) for one, other, *_ in times]).T
    assert (np.abs(each.waits_ns - truly) <= each.error_ns).all()


def test_short_waits_bring_clocks_closer_than_a_gpu_knows_the_time_of_the_host() -> None:
    spans: list[tuple[Span | None, Span | None]] = [((0, 2000), (900, 2000)), ((9900, 11_000), (9000, 11_100))]
    assert found(*on_two(spans))[MODE, 0].error_ns == 1150


def test_a_launch_without_a_time_of_its_own_does_not_count() -> None:
    """Untimed, or timed together with the launch before, after or both, as launches of one step are."""
    alone, step = (100, 150), (200, 290)
    rows = []
    for gpu in (4, 7):
        gemm = launch(gpu, 2, step, op="gemm")
        own = [launch(gpu, 0, alone), launch(gpu, 1, None), gemm, launch(gpu, 3, step), launch(gpu, 4, step)]
        rows += [*own, launch(gpu, 5, (400, 450))]
    for size in (1, 2, 3, 100):
        each = found(*rows, size=size)[MODE, 0]
        assert (each.launches.tolist(), each.asked) == ([[0, 5]] * 2, 5)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [launch(None, 0, (100, 150)), launch(None, 1, (200, 250))],
        [launch(4, 0, (100, 150))],
        [launch(4, 0, (100, 150), op="gemm"), launch(7, 0, (100, 150), op=None)],
        [*on_two([((100, 150), (100, 150))]), launch(7, 9, (300, 350))],
        on_two([((100, 150), None), (None, (300, 350))]),
    ],
    ids=["none", "one GPU", "on one GPU alone", "other ops", "counts differ", "timed on different GPUs"],
)
def test_what_no_two_gpus_share_has_no_skew(rows: list[dict[str, Any]]) -> None:
    assert found(*rows) == {}


def kernel(gpu: int | None, span: Span, name: str = "ALL_REDUCE", launch: int | None = 0) -> dict[str, Any]:
    times = {"start_ns": span[0], "end_ns": span[1]}
    return {"mode": MODE, "repeat": 0, "gpu": gpu, "launch": launch, "name": name} | times


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def of_kernels(*rows: dict[str, Any]) -> dict[tuple[str, int], AllReduces]:
    schema = pa.schema([KERNELS.field(name) for name in NEEDED_OF_KERNELS])
    return all_reduce_kernels(pa.Table.from_pylist(list(rows), schema=schema).to_batches(max_chunksize=2))


def test_kernels_of_one_graph_have_times_of_their_own() -> None:
    rows = [
        *(kernel(4, (0, 1000)), kernel(4, (1500, 1600), "gemm"), kernel(4, (5000, 6000), "REDUCE_ADD_NORM")),
        *(
            kernel(7, (100, 1000), NCCL),
            kernel(7, (4900, 5900), "REDUCE_ADD_NORM"),
            kernel(7, (7000, 7100), "ALL_GATHER"),
        ),
        kernel(7, (7200, 7300), "memcpy", launch=None),
    ]
    each = of_kernels(*rows)[MODE, 0]
    assert (each.asked, each.offsets_ns, each.error_ns) == (2, (0, 0), 900)
    assert each.waits_ns.tolist() == [[100, 0], [0, 100]]
    assert each.transfers_ns.tolist() == [[900, 1000], [900, 900]]
    assert of_kernels(*(row | {"gpu": None} for row in rows)) == {}
    assert of_kernels() == {}


def test_repeats_are_apart_and_their_table_is_of_all() -> None:
    first = on_two([((0, 90), (50, 85))], is_gpu=False)
    second = [row | {"repeat": 1} for row in on_two([((100, 190), (100, 190))], is_gpu=False)]
    of_repeats = found(*first, *second)
    assert list(of_repeats) == [(MODE, 0), (MODE, 1)]
    both, one, other = skews("run", of_repeats)
    assert (both.gpu, both.all_reduces, both.timed, both.last_share) == (None, 2, 2, None)
    assert (one.gpu, one.last_share, other.gpu, other.last_share) == (4, 0.25, 7, 0.75)
    assert (both.wait_p50_us, other.wait_p50_us, both.transfer_p50_us) == (0.025, 0.0, 0.065)
    cells = skew_rows([both, one, other], {"run"})
    assert cells[0][:2] == [f"{MODE}, skew", "2 of 2"]
    assert [each[0] for each in cells[1:]] == ["  GPU 4", "  GPU 7"]
    assert skew_rows([both], {"run", "other"})[0][0] == f"{MODE} (run run), skew"


def test_a_split_mode_without_a_timed_all_reduce_has_the_reason() -> None:
    rows = [
        {"run_id": "run", "mode": mode, "tensor": tensor}
        for mode, tensor in ((MODE, 2), ("graph", 2), ("graph", 2), ("alone", None))
    ]
    known = skews("run", found(*on_two([((0, 90), (50, 85))])))
    (line,) = without_times(rows, known)
    assert line.startswith("graph: no all-reduce has times of its own")
    (graph, other) = without_times([*rows, rows[0] | {"run_id": "other"}], known)
    assert graph.startswith("graph (run run): no all-reduce")
    assert other.startswith(f"{MODE} (run other): no all-reduce"), "its times in another run are not its own"


def test_no_gpu_ends_before_another_one_begins_whatever_the_order_of_three() -> None:
    """As recorded, the second one ends before the third one begins. The first one alone bounds neither of them."""
    spans = [(0, 100), (10, 20), (50, 60)]
    waits = []
    for order in permutations(range(3)):
        rows = [launch(gpu, 0, spans[gpu]) for gpu in order]
        each = found(*rows)[MODE, 0]
        assert each.transfers_ns.min() >= 0
        waits.append({gpu: wait for gpu, (wait,) in zip(each.gpus, each.waits_ns.tolist(), strict=True)})
    assert waits == [waits[0]] * 6
