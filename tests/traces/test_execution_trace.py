"""Execution traces: order, weights and groups as in the program; a message for each bad file, no traceback for any."""

from __future__ import annotations

import contextlib
import gzip
import json
import tempfile
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launchopt.command import Dtype
from launchopt.errors import DataError
from launchopt.traces import execution_trace
from launchopt.traces.execution_trace import ExecutionTrace, is_execution_trace, read_execution_trace
from launchopt.traces.gemm_list import ListedGemm
from launchopt.workloads.list import GemmList

RECORDED = Path(__file__).parents[1] / "corpus/execution_trace.json.gz"  # two steps of a layer with attention, on a CPU
X, W, V, Y, Z, CACHE = range(10, 16)  # storages
MM, ADD = "aten::mm(Tensor self, Tensor mat2) -> Tensor", "aten::add.Tensor(Tensor self, Tensor other) -> Tensor"
COPY = "aten::copy_(Tensor(a!) self, Tensor src) -> Tensor(a!)"
VIEW = "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)"


def tensor(storage: int) -> list[object]:
    return [99, storage, 0, 16, 4, "cpu"]  # PyTorch uses the number of a tensor again for another one


def op(schema: str, read: list[int], written: list[int], **other: Any) -> dict[str, Any]:
    dims = [[4, 4]] * len(read)
    node = {
        "name": schema.partition("(")[0].partition(".")[0],
        "ctrl_deps": 1,
        "inputs": {"values": [tensor(each) for each in read], "shapes": dims, "types": ["Tensor(float)"] * len(read)},
        "outputs": {"values": [tensor(each) for each in written]},
        "attrs": [{"name": "op_schema", "type": "string", "value": schema}],
    }
    return node | other


def path_of(folder: Path, content: object) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps(content))
    return path


def read(folder: Path, *nodes: dict[str, Any]) -> ExecutionTrace:
    numbers = count(2)
    return read_execution_trace(path_of(folder, {"nodes": [{"id": next(numbers)} | node for node in nodes]}))


def weights_and_groups(trace: ExecutionTrace) -> list[str]:
    return [gemm.weight + gemm.group for gemm in trace.gemms]


def test_a_recorded_program_keeps_order_weights_and_groups() -> None:
    trace = read_execution_trace(RECORDED)
    layer = [(16, 4, 16, "w0"), (8, 4, 16, "w1"), (8, 4, 16, "w2"), (4, 4, 8, ""), (8, 4, 4, ""), (16, 4, 16, "w3")]
    groups = [0, 0, 0, 1, 2, 3, 4, 4, 4, 5, 6, 7]
    rows = zip(layer * 2, groups, strict=True)
    expected = [ListedGemm(m, n, k, 1, Dtype.fp32, w, str(group)) for (m, n, k, w), group in rows]
    assert [replace(each, input="") for each in trace.gemms] == expected
    assert [each.input for each in trace.gemms[:6]] == ["x0", "x0", "x0", "", "", "x1"], "q, k, v have one input"
    assert trace.left_out == {}


def test_it_is_a_workload(tmp_path: Path) -> None:
    assert is_execution_trace(RECORDED)
    assert GemmList(path=str(RECORDED), repeat=3).count("cpu") == 36
    path = tmp_path / "gemms.csv"
    path.write_text("m,n,k\n1,2,3\n")
    assert not is_execution_trace(path)


def test_an_output_reaches_a_gemm_through_other_operators(tmp_path: Path) -> None:
    through = op(MM, [X, W], [Y]), op(VIEW, [Y], [Y]), op(ADD, [Y, X], [Z]), op(MM, [Z, W], [20])
    assert weights_and_groups(read(tmp_path, *through)) == ["w00", "w01"]
    beside = op(MM, [X, W], [Y]), op(ADD, [X, X], [Z]), op(MM, [Z, W], [20])
    assert weights_and_groups(read(tmp_path, *beside)) == ["w00", "w00"]


@pytest.mark.parametrize(
    "write",
    [
        op(COPY, [CACHE, Y], [CACHE]),
        op("ours::write(Tensor key, Tensor(a!) cache) -> ()", [Y, CACHE], []),
        op("", [Y, CACHE], [], name="a_kernel"),
    ],
)
def test_writes_in_place_order_what_reads_them(tmp_path: Path, write: dict[str, Any]) -> None:
    trace = read(tmp_path, op(MM, [X, W], [Y]), write, op(MM, [X, CACHE], [Z]))
    assert [gemm.group for gemm in trace.gemms] == ["0", "1"]
    assert trace.gemms[1].weight != trace.gemms[0].weight


def test_a_product_of_a_sparse_matrix_is_counted_and_keeps_its_place_in_the_order(tmp_path: Path) -> None:
    sparse = op(MM, [X, Y], [Z])
    sparse["inputs"]["values"][0] = [99, 0, 0, 0, 0, ""]
    trace = read(tmp_path, op(MM, [X, W], [Y]), sparse, op(MM, [Z, W], [20]))
    assert weights_and_groups(trace) == ["w00", "w01"]
    assert trace.left_out == {"of a sparse matrix": 1}


def test_a_storage_that_is_used_again_depends_on_nothing_before(tmp_path: Path) -> None:
    new = op("aten::empty(int[] size) -> Tensor", [], [Y])
    assert weights_and_groups(read(tmp_path, op(MM, [X, W], [Y]), new, op(MM, [Y, W], [Z]))) == ["w00", "w00"]


def test_a_weight_that_is_written_to_is_another_one(tmp_path: Path) -> None:
    trace = read(tmp_path, op(MM, [X, W], [Y]), op(COPY, [W, V], [W]), op(MM, [X, W], [Z]))
    assert weights_and_groups(trace) == ["w00", "w10"]


def strided(schema: str, *strides: list[int], written: int) -> dict[str, Any]:
    node = op(schema, [X, W], [written])
    node["inputs"]["strides"] = list(strides)
    return node


def test_a_matrix_its_transpose_and_every_other_row_of_a_larger_one_are_different_weights(tmp_path: Path) -> None:
    linear, x = "aten::linear(Tensor input, Tensor weight) -> Tensor", [4, 1]
    of_linear = [strided(linear, x, each, written=Y) for each in ([4, 1], [8, 1])]
    of_mm = [strided(MM, x, each, written=Z) for each in ([1, 4], [4, 1], [1, 8])]
    assert weights_and_groups(read(tmp_path, *of_linear, *of_mm)) == ["w00", "w00", "w10", "w10", "w20"]


def test_the_stride_of_a_single_row_does_not_matter(tmp_path: Path) -> None:
    nodes = [strided(MM, [each, 1], [1, 4], written=Y) for each in (4, 8)]
    for node in nodes:
        node["inputs"]["shapes"] = [[1, 4], [4, 4]]
    assert [each.input for each in read(tmp_path, *nodes).gemms] == ["x0", "x0"]


def test_the_first_factor_is_the_weight_if_the_second_is_an_output(tmp_path: Path) -> None:
    wide = op(MM, [W, Y], [Z])
    wide["inputs"]["shapes"] = [[8, 4], [4, 2]]
    first = op(MM, [X, V], [Y])
    assert read(tmp_path, first, wide).gemms[1] == ListedGemm(8, 2, 4, 1, Dtype.fp32, "w1", "1", "x1")


def test_gemms_of_a_group_that_share_a_weight_stand_together(tmp_path: Path) -> None:
    trace = read(tmp_path, *(op(MM, [X, weight], [20 + at]) for at, weight in enumerate([W, V, W, V])))
    assert weights_and_groups(trace) == ["w00", "w00", "w10", "w10"]


def test_gemms_have_one_input_until_something_writes_to_it(tmp_path: Path) -> None:
    gemms = op(MM, [X, W], [Y]), op(MM, [X, V], [Z]), op(COPY, [X, V], [X]), op(MM, [X, V], [20])
    assert [each.input for each in read(tmp_path, *gemms).gemms] == ["x0", "x0", "x1"]


def test_an_input_made_in_the_trace_is_no_weight_of_a_trained_layer(tmp_path: Path) -> None:
    made = op("aten::randn(int[] size) -> Tensor", [], [X])
    trace = read(tmp_path, op(MM, [V, W], [Y]), op(COPY, [W, Y], [W]), made, op(MM, [X, W], [Z]))
    assert weights_and_groups(trace) == ["w00", "1"]


def test_an_outer_operator_counts_once_and_its_output_depends_on_the_inner_gemm(tmp_path: Path) -> None:
    inner = op(MM, [X, W], [Y], id=51, ctrl_deps=50)
    outer = op("aten::matmul(Tensor self, Tensor other) -> Tensor", [X, W], [Y], id=50)
    assert weights_and_groups(read(tmp_path, inner, outer, op(MM, [Y, W], [Z]))) == ["w00", "w01"]


def test_a_batched_operator_is_a_row_with_a_count(tmp_path: Path) -> None:
    batched = op("aten::bmm(Tensor self, Tensor mat2) -> Tensor", [X, W], [Y])
    batched["inputs"] |= {"shapes": [[6, 4, 8], [6, 8, 2]], "types": ["Tensor(c10::BFloat16)"] * 2}
    assert read(tmp_path, batched).gemms == (ListedGemm(2, 4, 8, 6, Dtype.bf16, "", "0"),)


def test_gemms_of_other_types_are_counted_and_keep_the_order(tmp_path: Path) -> None:
    integer = op(MM, [Y, V], [Z])
    integer["inputs"]["types"] = ["Tensor(signed char)"] * 2
    trace = read(tmp_path, op(MM, [X, W], [Y]), integer, op(MM, [Z, W], [20]))
    assert weights_and_groups(trace) == ["w00", "w01"]
    assert trace.left_out == {"of type signed char": 1}


@pytest.mark.parametrize("name", ["aten::_local_scalar_dense(Tensor self) -> Scalar", "a copy to the host"])
def test_what_a_program_does_after_it_read_a_number_depends_on_that_number(name: str, tmp_path: Path) -> None:
    to_host = op(name, [Y], [Z] if "copy" in name else [])
    to_host["inputs"]["values"] = [[*tensor(Y)[:5], "cuda:0"]]
    trace = read(tmp_path, op(MM, [X, W], [Y]), to_host, op(MM, [X, W], [20]), op(MM, [X, W], [21]))
    assert weights_and_groups(trace) == ["w00", "w01", "w01"]


def test_a_trace_that_was_cut_short_can_be_read_as_far_as_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"nodes": [NODE, NODE | {"id": 3}, NODE]})[:-200])
    trace = read_execution_trace(path, may_end_early=True)
    assert len(trace.gemms) == 2
    assert trace.cut == execution_trace.CUT
    monkeypatch.setattr(execution_trace, "MOST_ROWS", 1)
    trace = read_execution_trace(path, may_end_early=True)
    assert len(trace.gemms) == 1
    assert trace.cut.startswith("over 1 GEMMs")


NODE = op(MM, [X, W], [Y], id=2)
WRONG = {
    "{}": "a JSON object without nodes; expected a list of GEMMs, or what PyTorch's ExecutionTraceObserver writes",
    '{"nodes": []}': "a JSON object without nodes",
    '{"nodes": [1]}': "node 1: node: expected an object",
    '{"nodes": [{}]}': "node 1: inputs: expected an object",
    json.dumps({"nodes": [NODE | {"id": "2"}]}): "node 1: id: expected a whole number",
    json.dumps({"nodes": [op(ADD, [X, W], [Y], id=2)]}): "a trace without GEMMs that can be replayed",
    json.dumps(
        {"nodes": [NODE | {"name": "Torch-Compiled Region: 0/0"}]}
    ): "set TORCH_COMPILE_DISABLE=1, and record again",
    json.dumps({"nodes": [NODE]})[:-20]: "not JSON, or cut short",
    json.dumps({"nodes": [NODE | {"inputs": NODE["inputs"] | {"values": []}}]}): "expected two tensors, got 0",
}


@pytest.mark.parametrize("content", WRONG)
def test_a_wrong_trace_is_refused_in_a_line(content: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        read_execution_trace(path)
    assert WRONG[content] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("limit", ["MOST_NODES", "MOST_ROWS", "MOST_SHAPES"])
def test_a_trace_over_a_limit_is_refused(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_trace, limit, 1)
    with pytest.raises(DataError, match=r"over .*: record fewer steps"):
        read_execution_trace(RECORDED)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(["values", "shapes", "types"]), ANY, st.integers(1, 2000))
@settings(max_examples=100, deadline=None)
def test_no_content_ends_in_another_error(key: str, odd: Any, cut: int) -> None:
    content = json.dumps({"nodes": [NODE | {"inputs": NODE["inputs"] | {key: odd}}, NODE]}).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        for each in (content, gzip.compress(content, mtime=0)[:cut]):
            path.write_bytes(each)
            with contextlib.suppress(DataError):
                read_execution_trace(path)
