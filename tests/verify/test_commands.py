"""The check passes what is right and, one fault at a time, fails what is wrong."""

from __future__ import annotations

import dataclasses
import math
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.cuda.fake_cupy import FakeCupy
from support.steps.straight import layers, multiply, operands, output, records_of, shape_of, small

from launchopt.command import Dtype, Records, ShapeKey
from launchopt.devices.arenas import Arenas, from_float32, to_float32
from launchopt.streams.gemm_stream import GemmStream
from launchopt.streams.operands import arenas_of
from launchopt.verify import commands as checking
from launchopt.verify.commands import CheckSettings, Verification, verify
from launchopt.verify.products import Tolerance, typical_output
from launchopt.workloads.gemv import gemv

COLUMNS = 16
VICTIM = 7  # the command that a fault befalls


def repeated(dtype: Dtype) -> GemmStream:
    """Commands that share both inputs, and so have one product at several places."""
    return gemv(8, 3, 32, 24, dtype, 2)


def named(stream: GemmStream, record: Any) -> str:
    return f"{shape_of(stream, record)}, output slot {record['slot_c']}: error "


@pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("make", [small, repeated, layers])
def test_what_is_right_passes(make: Any, dtype: Dtype) -> None:
    stream = make(dtype)
    arenas = operands(stream)
    multiply(stream, arenas, records_of(stream))
    found = verify(stream, arenas, CheckSettings(COLUMNS))
    assert found.ok
    assert (found.commands, found.wrong, found.first_wrong) == (stream.commands, 0, None)
    assert found.compared_share == 1
    assert 0 < found.max_rel_error <= found.tolerance


def test_threads_of_a_check_use_the_gpu_that_holds_the_operands() -> None:
    cupy: Any = FakeCupy()
    stream, used = small(Dtype.fp32), list[str]()
    second = SimpleNamespace(use=lambda: used.append(threading.current_thread().name))
    cupy.cuda.Device = lambda: second
    arenas = operands(stream)
    multiply(stream, arenas, records_of(stream))
    arenas.xp = cupy
    assert verify(stream, arenas, CheckSettings(COLUMNS)).ok
    assert used
    assert threading.current_thread().name not in used


def move(field: str) -> Any:
    """Every command reads its neighbour's operand, as a wrong stride does."""

    def fault(stream: GemmStream, arenas: Arenas, records: Records) -> int:
        wrong = records.copy()
        wrong[field] = np.roll(records[field], 1)
        multiply(stream, arenas, wrong)
        return len(records)

    return fault


def drop(stream: GemmStream, arenas: Arenas, records: Records) -> int:
    multiply(stream, arenas, np.delete(records, VICTIM))
    return 1


def never_ran(stream: GemmStream, arenas: Arenas, records: Records) -> int:
    return len(records)


def swap(stream: GemmStream, arenas: Arenas, records: Records) -> int:
    wrong = records.copy()
    wrong["slot_c"][[VICTIM, 9]] = records["slot_c"][[9, VICTIM]]
    multiply(stream, arenas, wrong)
    return 2


def same_output(stream: GemmStream, arenas: Arenas, records: Records) -> int:
    """All write the first one's output: what the strided call with stride 0 does."""
    wrong = records.copy()
    wrong["slot_c"] = 0
    multiply(stream, arenas, wrong)
    return len(records)


def stale_input(stream: GemmStream, arenas: Arenas, records: Records) -> int:
    """The result of the input before."""
    wrong = records.copy()
    wrong["slot_b"][VICTIM] = records["slot_b"][VICTIM - 1]
    multiply(stream, arenas, wrong)
    return 1


def stale_run(stream: GemmStream, arenas: Arenas, records: Records) -> int:
    """The outputs of a run on other inputs."""
    multiply(stream, arenas, records)
    arenas.fill(seed=1)
    return len(records)


def zero(stream: GemmStream, arenas: Arenas, records: Records) -> int:
    multiply(stream, arenas, records)
    output(stream, arenas, records[VICTIM])[:] = 0
    return 1


def all_zero(stream: GemmStream, arenas: Arenas, records: Records) -> int:
    for record in records:
        output(stream, arenas, record)[:] = 0
    return len(records)


def shift(stream: GemmStream, arenas: Arenas, record: Any, tolerances: float) -> None:
    """One element off by so many times what it is allowed."""
    target = output(stream, arenas, record)
    values, bound = to_float32(target, stream.dtype), Tolerance.of(stream.shapes[0])
    values[-1, 5] += tolerances * (bound.storing * abs(values[-1, 5]) + bound.computing)
    target[:] = from_float32(values, stream.dtype)


def one_element(stream: GemmStream, arenas: Arenas, records: Records) -> int:
    multiply(stream, arenas, records)
    shift(stream, arenas, records[VICTIM], 3.5)
    return 1


def infinite(stream: GemmStream, arenas: Arenas, records: Records) -> int:
    multiply(stream, arenas, records)
    output(stream, arenas, records[VICTIM])[0, 0] = from_float32(np.array([np.inf], np.float32), stream.dtype)[0]
    return 1


FAULTS = {
    "wrong stride of A": move("slot_a"),
    "wrong stride of B": move("slot_b"),
    "wrong stride of C": move("slot_c"),
    **{
        fault.__name__: fault
        for fault in (drop, never_ran, swap, same_output, stale_input, stale_run, zero, all_zero, one_element, infinite)
    },
}


@pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_what_is_wrong_is_counted_and_named(fault: Any, dtype: Dtype) -> None:
    stream = small(dtype)
    arenas, records = operands(stream), records_of(stream)
    expected = fault(stream, arenas, records)
    found = verify(stream, arenas, CheckSettings(COLUMNS))
    assert not found.ok
    assert (found.wrong, found.commands) == (expected, stream.commands)
    assert found.max_rel_error > found.tolerance
    assert found.first_wrong is not None
    if expected == 1:
        assert found.first_wrong.startswith(named(stream, records[VICTIM]))
        assert found.first_wrong.endswith(f"error {found.max_rel_error:.3g}, allowed {found.tolerance:.3g}")


def test_an_error_within_the_tolerance_passes() -> None:
    stream = small()
    arenas, records = operands(stream), records_of(stream)
    multiply(stream, arenas, records)
    shift(stream, arenas, records[VICTIM], 0.5)
    found = verify(stream, arenas, CheckSettings(COLUMNS))
    assert found.ok
    assert found.max_rel_error > 0.3 * found.tolerance


@pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name)
def test_a_fault_among_several_shapes_is_named_by_its_own(dtype: Dtype) -> None:
    stream = layers(dtype)
    arenas, records = operands(stream), records_of(stream)
    multiply(stream, arenas, records)
    for record in records[::7]:
        target = output(stream, arenas, record)
        kept = target.copy()
        target[:] = -kept if dtype is not Dtype.bf16 else kept ^ 0x8000
        found = verify(stream, arenas, CheckSettings(COLUMNS))
        assert found.wrong == 1
        assert found.first_wrong is not None
        assert found.first_wrong.startswith(named(stream, record))
        target[:] = kept
    assert verify(stream, arenas, CheckSettings(COLUMNS)).ok


def test_one_unwritten_element_is_found_in_any_column() -> None:
    """Also in the columns that are not compared."""
    stream = small(n=12)
    arenas, records = operands(stream), records_of(stream)
    multiply(stream, arenas, records)
    assert verify(stream, arenas, CheckSettings(4)).compared_share == pytest.approx(4 / 12)
    target = output(stream, arenas, records[VICTIM])
    for column in range(12):
        kept = target[column, 3]
        target[column, 3] = np.nan
        found = verify(stream, arenas, CheckSettings(4))
        assert (found.wrong, found.max_rel_error) == (1, math.inf)
        target[column, 3] = kept
    assert verify(stream, arenas, CheckSettings(4)).ok


def test_little_memory_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = layers(Dtype.fp16)
    arenas, records = operands(stream), records_of(stream)
    multiply(stream, arenas, np.delete(records, [3, 30]))
    whole = verify(stream, arenas, CheckSettings(COLUMNS))
    assert whole.wrong == 2
    for chunk_bytes in (1, 3000):
        monkeypatch.setattr(checking, "CHUNK_BYTES", chunk_bytes)
        assert verify(stream, arenas, CheckSettings(COLUMNS)) == whole


def test_nothing_checked_is_not_ok() -> None:
    fine = Verification(1, 1, 0, 0.0, 1.0, 1.0, None)
    assert fine.ok
    assert not dataclasses.replace(fine, checked=0).ok


@pytest.mark.parametrize("dtype", [Dtype.fp16, Dtype.bf16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("parts", [2, 8])
def test_sums_of_parts_that_were_stored_in_half_precision_are_wrong(dtype: Dtype, parts: int) -> None:
    stream = gemv(64, 1, 512, 24, dtype, 6)
    arenas, records = operands(stream), records_of(stream)
    keys = arenas_of(stream.shapes[0])
    for record in records:
        a, b = (arenas.matrix(key, int(record[f"slot_{role}"])) for key, role in zip(keys, "ab", strict=False))
        total = np.zeros((1, 64), np.float32)
        for columns in np.split(np.arange(512), parts):
            part = to_float32(from_float32(b[:, columns] @ a[:, columns].T, dtype), dtype)
            total = to_float32(from_float32(total + part, dtype), dtype)
        output(stream, arenas, record)[:] = from_float32(total, dtype)
    found = verify(stream, arenas, CheckSettings(COLUMNS))
    assert found.wrong == stream.commands
    assert found.max_rel_error > 2 * found.tolerance
    multiply(stream, arenas, records)
    assert verify(stream, arenas, CheckSettings(COLUMNS)).ok


def test_tolerance_is_one_rounding_of_the_result_and_those_of_the_sum() -> None:
    for dtype in Dtype:
        storing, computing = Tolerance.of(ShapeKey(64, 1, 8192, dtype))
        assert storing == dtype.unit_roundoff
        assert computing / typical_output(ShapeKey(64, 1, 8192, dtype)) < 5e-5


def test_the_progress_of_a_check_ends_at_all_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "CHUNK_BYTES", 1)  # a command at a time
    stream = small(Dtype.fp32)
    seen: list[int] = []
    arenas, _ = operands(stream), records_of(stream)
    verify(stream, arenas, CheckSettings(COLUMNS, report=seen.append))
    assert seen == list(range(1, stream.commands + 1))


@pytest.mark.parametrize("workers", [1, 3])
def test_threads_change_nothing(workers: int) -> None:
    stream = layers(Dtype.bf16)
    arenas, records = operands(stream), records_of(stream)
    multiply(stream, arenas, np.delete(records, [3, 30]))
    found = verify(stream, arenas, CheckSettings(COLUMNS, workers=workers))
    assert (found.wrong, found.checked, found.compared_share) == (2, stream.commands, 1)


def test_a_consumer_may_have_no_command_of_a_width() -> None:
    stream = layers(Dtype.fp32)
    arenas, records = operands(stream), records_of(stream)
    multiply(stream, arenas, records)
    own = np.zeros(stream.commands, np.bool_)
    own[records["seq"][records["n"] == 1]] = True
    found = verify(stream, arenas, CheckSettings(COLUMNS), own)
    assert found.ok
    assert 0 < found.commands == np.count_nonzero(own) < stream.commands
