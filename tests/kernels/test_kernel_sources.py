"""What kernels and the host both know of each other: structs, numbers of ops, constants; and that sources are whole.

Structs are read from the CUDA text, word by word, and compared with what the host writes.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from support import cuda_on_host
from support.cuda.libraries import imported
from support.megakernel.kernel_text import (
    HEADERS,
    INCLUDE,
    SOURCES,
    constant,
    fields,
    included,
    names,
    numbered,
    text_of,
)

from launchopt.command import Op
from launchopt.devices.cuda.op_kernels import ARGS
from launchopt.devices.feedback import in_launch as feedback
from launchopt.devices.feedback import stages as feedback_stages
from launchopt.devices.instructions import fusion
from launchopt.devices.instructions import words as ins
from launchopt.devices.instructions.words import MOST_COLUMNS
from launchopt.devices.megakernel import mailboxes as boxes
from launchopt.devices.megakernel import packed as words
from launchopt.devices.megakernel import shared_memory as room
from launchopt.devices.megakernel import tasks
from launchopt.kernels import source
from launchopt.sampling import SamplingKind

LINE = 128


# -- Sources


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_has_each_header_once(name: str) -> None:
    text, headers = source(name), included(name)
    assert headers <= set(HEADERS)
    assert "#include" not in text, "a compiler is given no path"
    for header in HEADERS:
        body = INCLUDE.sub("", text_of(header)).strip()
        assert text.count(body) == (header in headers), header
    assert text.count('extern "C"') >= 1
    assert text.count("{") == text.count("}")


def test_the_host_knows_all_that_ptx_is_for() -> None:
    """By the names of the functions."""
    declared = set(re.findall(r"__device__ inline [\w]+&? (\w+)\(", text_of("common/ptx.cuh")))
    on_host = (Path(cuda_on_host.__file__).parent / "cuda_on_host.h").read_text(encoding="utf-8")
    assert {"barrier_try", "pair_together", "at_peer", "send_to_peer"} <= declared
    assert declared <= set(re.findall(r"^(?:inline )?[\w:]+&? (\w+)\(", on_host, re.MULTILINE))


@pytest.mark.parametrize("name", SOURCES + HEADERS)
def test_no_line_is_too_long(name: str) -> None:
    assert [line for line in text_of(name).splitlines() if len(line) > LINE] == []


def test_no_header_is_left_over() -> None:
    assert {header for name in SOURCES for header in included(name)} == set(HEADERS)


# -- megakernel.cu


def test_an_instruction_has_the_columns_of_a_list() -> None:
    found = fields(source("megakernel"), "Instruction")
    told = [word for word in ins.Word if word < ins.Word.WAITS]
    assert [name.upper() for _, name in found] == [word.name for word in told]
    addresses = {ins.Word.A, ins.Word.B, ins.Word.C, ins.Word.POSITIONS, ins.Word.TABLE}
    kinds = ["double" if word is ins.Word.THETA else "u64" if word in addresses else "i64" for word in told]
    assert [kind for kind, _ in found] == kinds, "a word each"


def test_ops_have_the_numbers_that_a_list_gives_them() -> None:
    assert numbered(source("megakernel"), "OP_GEMM") == {f"OP_{op.name}": op.value for op in Op}


def test_every_op_but_a_gemm_is_played() -> None:
    cases = re.findall(r"^ +PLAY\((\w+)\);$", source("megakernel"), re.MULTILINE)
    assert sorted(cases) == sorted(op.name for op in Op if op is not Op.GEMM)


def test_an_instructions_words_become_the_arguments_of_its_op() -> None:
    (body,) = re.findall(r"return \{(in\.m, [^}]*)\};", source("megakernel"))
    given = [name.strip().removeprefix("in.") for name in body.split(",")]
    assert names(source("megakernel"), "Args") == list(ARGS)
    assert given == ["all_requests" if name == "requests" else name for name in ARGS]


def test_constants_of_lists_are_those_of_the_kernel() -> None:
    text = source("megakernel")
    assert constant(text, "MOST_WAITS") == ins.MOST_WAITS
    assert constant(text, "JOIN") == ins.JOIN


def test_tasks_and_weights_are_told_in_the_words_of_their_structs() -> None:
    text = source("megakernel")
    kinds = {"u64": "<u8", "u32": "<u4", "i64": "<i8"}
    *found, (kind, name) = fields(text, "Task")
    assert (kind, name, words.TASK[name]) == ("Instruction", "in", np.dtype(("<i8", ins.Word.WAITS)))
    told = [(each, words.TASK[each]) for each in words.TASK.names[:-1]]
    places = {each: range(kind.shape[0]) if kind.shape else [""] for each, kind in told}
    assert [(name, kinds[kind]) for kind, name in found] == [
        (f"{each}{place}", kind.base.str) for each, kind in told for place in places[each]
    ]
    assert words.TASK.itemsize % 16 == 0, "it is copied by as many bytes"
    assert [(name, kinds[kind]) for kind, name in fields(text, "Weights")] == words.WEIGHTS.descr
    assert numbered(text, "SPLIT") == {str(flag.name): int(flag) for flag in words.Flag}
    for name in ("PIECE_BYTES", "MOST_COLUMNS", "INPUT_GAP_BYTES"):
        assert constant(text, name) == getattr(tasks, name)
    assert constant(text, "PIECE_BYTES") == ins.SLICE_BYTES * constant(text, "GROUP_WARPS"), "a slice a warp"


def test_what_is_done_as_one_is_what_the_kernel_can() -> None:
    text = source("megakernel")
    assert constant(text, "QUERIES") == constant(text, "KEY_LANES") == fusion.QUERIES_A_KV_HEAD
    assert constant(text, "MOST_HEAD_DIM") == fusion.MOST_HEAD_DIM
    assert constant(text, "AT_ONCE") == fusion.QUERIES_AT_ONCE
    assert constant(text, "GROUP_WARPS") == fusion.WARPS == constant(text, "THREADS") // 32
    assert re.findall(r"for \(int step = vectors; step < (\d+);", text) == [str(fusion.MOST_LANES)], "of a warp"
    assert constant(text, "WHOLE_TOKENS") == fusion.WHOLE_TOKENS
    pairs = (fusion.QUERIES_A_KV_HEAD + 2) * fusion.MOST_LANES // 2
    assert pairs <= 32 * fusion.WARPS, "vectors that are turned together are a thread's"
    assert constant(text, "TILE_ROWS") == ins.GEMM_TILE_ROWS


def test_what_is_done_as_one_has_room_in_shared_memory() -> None:
    """Attention where a GEMM may have its inputs; of a norm all columns, or what registers hold; its gain in a slot."""
    one, several = fusion.NORM_BYTES[1], fusion.NORM_BYTES[MOST_COLUMNS]
    assert room.SCRATCH_BYTES >= fusion.ATTENTION_BYTES
    assert one <= room.SCRATCH_BYTES
    assert MOST_COLUMNS * several <= room.INPUT_BYTES
    assert several <= room.HELD_BYTES
    assert max(one, several) <= room.SLOT_BYTES


def test_a_program_is_told_in_the_words_of_its_struct() -> None:
    ahead, made = (imported(f"launchopt.devices.megakernel.{name}") for name in ("launch_ahead", "program"))

    text = source("megakernel")
    assert names(text, "Program") == ["tasks", "counters", "weights", "count", "box_bytes", "stamps"]
    assert len(names(text, "Program")) == made.PROGRAM_WORDS
    (parameters,) = re.findall(r"\bmegakernel\((const .*)\) \{", text)
    assert [each.split()[-2:] for each in parameters.split(", ")] == [
        ["Program", "q"],
        ["Feedback", "feed"],
        ["u32", "launch"],
        ["Gate", "gate"],
    ], "in the order of what `launch` writes"
    assert names(text, "Gate") == ["word", "gave_up", "heard", "tag", "patience_ns"]
    assert (len(names(text, "Gate")), names(text, "Gate").index("tag")) == (ahead.GATE_WORDS, ahead.TAG)
    assert (64 - constant(text, "TAG_BITS"), 2 ** constant(text, "TAG_BITS") - 1) == (ahead.TAG_SHIFT, ahead.MOST_TAG)
    assert re.findall(r"#define EMPTY 0x(\w+)u", text) == [f"{boxes.EMPTY:X}" * 4]


def test_what_is_fed_back_is_told_in_the_words_of_its_struct() -> None:
    for name in ("megakernel", "feedback"):
        found = fields(source(name), "Feedback")
        assert tuple(field for _, field in found) == feedback.FIELDS
        assert {field for kind, field in found if kind == "double"} == set(feedback.REALS)
        assert {kind for kind, _ in found} <= {"u64", "double", "const u64*", "u64*"}, "a word each"
        assert constant(source(name), "ROW_WORDS") == feedback_stages.WORDS
    assert numbered(source("feedback"), "NONE") == {kind.name.upper(): i for i, kind in enumerate(SamplingKind)}


def test_what_is_fed_back_has_room_where_a_gemm_has_its_inputs() -> None:
    """Keys, or sums; the compiler asserts the same of the struct."""
    defined = dict(re.findall(r"#define (\w+) (.*)", feedback.head_of(SamplingKind.top_k)))
    most = max(4 * int(defined["CAPACITY"]), 8 * int(defined["PARTIAL_SUMS"])) + 8 * 34
    assert most <= room.SCRATCH_BYTES
    assert "#define KIND" not in source("megakernel"), "nothing is fed back unless told"


def test_a_block_has_the_shared_memory_that_its_struct_takes() -> None:
    text = source("megakernel")
    (several, scratch) = re.findall(r"INPUT_BYTES = COLUMN_PAIRS \? (\d+) << 10 : (\d+) << 10", text)[0]
    assert (int(several) << 10, int(scratch) << 10) == (room.INPUT_BYTES, room.SCRATCH_BYTES)
    assert constant(text, "HELD_PIECES") * constant(text, "PIECE_BYTES") == room.HELD_BYTES
    assert constant(text, "BOX_BYTES") == boxes.COLUMN_BYTES
    assert constant(text, "BOX_COLUMNS") == MOST_COLUMNS
    rows, warps = constant(text, "TILE_ROWS"), constant(text, "GROUP_WARPS")
    assert (warps, constant(text, "PASS_TILES") * rows + 8) == (room.WARPS, room.PART_ROWS)
    assert rows * (constant(text, "PIECE_BYTES") + 64) == room.SLOT_BYTES
    assert re.findall(r"OWN_ROWS = PASS_ROWS / (\d)", text) == ["2"], (
        "of a pass, a block of a pair stores half at the most"
    )
    least = room.LEAST_SLOTS
    assert least - (least // 2 - 1) >= constant(text, "PASS_TILES"), "see MOST_UNTOLD: what a pass wants can come"
    assert warps * 32 == constant(text, "THREADS")
    found = [room.slots_of(columns, itemsize, 0, 227 << 10) for columns, itemsize in ((1, 2), (16, 2), (16, 4))]
    assert found == [11, 10, 8], "of an H100"


def test_the_ring_begins_where_bulk_copies_are_fast() -> None:
    text, whole = source("megakernel"), room.RING_ALIGNMENT_BYTES
    assert f"extern __shared__ __align__({whole}) char shared[]" in text
    assert f"alignas({whole}) char ring[" in text
    assert not any(room.fixed_bytes(columns, itemsize) % whole for columns in (1, MOST_COLUMNS) for itemsize in (2, 4))
    assert room.SLOT_BYTES % whole == 0, "and so does each slot"


def test_all_blocks_of_the_launch_can_be_resident() -> None:
    megakernel = imported("launchopt.devices.megakernel.launcher")
    text = source("megakernel")
    heads = re.findall(r'extern "C" __global__ void (.*__launch_bounds__.*)$', text, re.MULTILINE)
    bounds = f"__launch_bounds__(ALL_THREADS, {megakernel.BLOCKS_A_MULTIPROCESSOR})"
    assert heads == [f"__cluster_dims__(2, 1, 1) {bounds}", bounds], "in pairs, and not"
    assert re.findall(r"__launch_bounds__\(.*\)\n#endif\nmegakernel\(", text)
    assert "LIST_THREADS = THREADS + 32 * SHORT }" in text
    assert "ALL_THREADS = LIST_THREADS + 32 }" in text
    assert constant(text, "THREADS") + 32 == megakernel.THREADS
    assert megakernel.STORERS == 32
