"""Sources of kernels are complete, and their structs have the same layout on the host."""

from __future__ import annotations

import enum
import re
from pathlib import Path

import numpy as np
import pytest
from support import cuda_on_host
from support.cuda.libraries import imported
from support.megakernel.kernel_text import HEADERS, SOURCES, included, text_of

from launchopt.command import COLLECTIVES, EXPERT_OPS, Op
from launchopt.devices.feedback import in_launch as feedback
from launchopt.devices.feedback import stages as feedback_stages
from launchopt.devices.instructions import fusion
from launchopt.devices.instructions import words as ins
from launchopt.devices.megakernel import memory
from launchopt.kernels import shared, source
from launchopt.kernels import shared_megakernel as megakernel
from launchopt.kernels.headers import constants_text, enum_text, struct_text
from launchopt.sampling import SamplingKind

LINE = 128
STRUCTS = {name: kind for name, kind in (vars(shared) | vars(megakernel)).items() if isinstance(kind, np.dtype)}


# -- Sources


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_has_each_header_once(name: str) -> None:
    text, headers = source(name), included(name)
    assert headers <= set(HEADERS)
    assert "#include" not in text, "the source has no include left"
    for header in HEADERS:
        body = source(header).strip()
        assert text.count(body) == (header in headers), header
    assert text.count('extern "C"') >= 1
    assert text.count("{") == text.count("}")


def test_the_host_replaces_every_function_of_ptx() -> None:
    """The test compares the names of the functions."""
    declared = set(re.findall(r"__device__ inline [\w]+&? (\w+)\(", text_of("common/ptx.cuh")))
    on_host = (Path(cuda_on_host.__file__).parent / "cuda_on_host.h").read_text(encoding="utf-8")
    assert {"barrier_try", "pair_together", "at_peer", "send_to_peer"} <= declared
    assert declared <= set(re.findall(r"^(?:inline )?[\w:]+&? (\w+)\(", on_host, re.MULTILINE))


@pytest.mark.parametrize("name", [name for name in SOURCES + HEADERS if not name.startswith("shared/")])
def test_no_line_is_too_long(name: str) -> None:
    assert [line for line in text_of(name).splitlines() if len(line) > LINE] == []


def test_no_template_of_a_shared_header_has_the_name_of_a_macro() -> None:
    macros = {
        name for file in SOURCES + HEADERS for name in re.findall(r"^//   ([A-Z_]+)  ", text_of(file), re.MULTILINE)
    }
    assert {"GROUPS", "COLUMNS", "HEAD_DIM", "TILES"} <= macros
    shared_headers = [name for name in HEADERS if name.startswith("common/")]
    named = {each for file in shared_headers for each in re.findall(r"(?:template <|, )int (\w+)[,>]", text_of(file))}
    assert {"NEWEST", "N", "R"} <= named
    assert not named & macros


def test_every_header_is_included() -> None:
    assert {header for name in SOURCES for header in included(name)} == set(HEADERS)


# -- Declarations


def test_a_struct_is_declared_field_by_field() -> None:
    inner = np.dtype([("count", "<i8")])
    dtype = np.dtype([("flags", "<u4"), ("wait", "<u4", (3,)), ("theta", "<f8"), ("words", "<u8"), ("in", inner)])
    assert struct_text("Made", dtype, {"words": "const u64*", "in": "Inner"}, alignment=16) == (
        "struct alignas(16) Made {\n    u32 flags;\n    u32 wait[3];\n    double theta;\n    const u64* words;\n"
        "    Inner in;\n};\n"
    )


def test_enums_and_constants_are_declared_with_their_values() -> None:
    class Kind(enum.IntEnum):
        FIRST = 3
        LAST = -1

    assert enum_text(Kind, "OF_") == "enum { OF_FIRST = 3, OF_LAST = -1 };\n"
    assert constants_text(ONE=1, TWO=2) == "enum { ONE = 1, TWO = 2 };\n"


@pytest.mark.parametrize("name", STRUCTS)
def test_a_struct_has_no_gaps_in_c_either(name: str) -> None:
    """NumPy packs fields without gaps; C aligns each field to its own size."""

    def alignment_of(kind: np.dtype[np.generic]) -> int:
        fields = kind.fields
        return kind.base.itemsize if fields is None else max(alignment_of(each[0]) for each in fields.values())

    struct = STRUCTS[name]
    assert struct.fields
    for field, (kind, offset, *_) in struct.fields.items():
        assert offset % alignment_of(kind) == 0, field
    assert struct.itemsize % alignment_of(struct) == 0


def test_a_task_is_copied_by_sixteen_bytes() -> None:
    assert megakernel.TASK.itemsize % 16 == 0


def test_an_instruction_has_the_columns_of_a_list() -> None:
    names = [word.name.lower() for word in ins.Word if word < ins.Word.WAITS]
    assert list(megakernel.INSTRUCTION.names or ()) == names
    assert megakernel.INSTRUCTION.itemsize == 8 * len(names)


def test_every_op_of_a_dense_layer_but_a_gemm_is_played() -> None:
    text = source("megakernel")
    without = {Op.GEMM, *COLLECTIVES, *EXPERT_OPS}
    assert all((f"PLAY({op.name});" in text) == (op not in without) for op in Op)


def test_an_instructions_words_become_the_arguments_of_its_op() -> None:
    given = ["in." + ("all_requests" if name == "requests" else name) for name in shared.ARGS.names or ()]
    assert f"return {{{', '.join(given)}}};" in " ".join(source("megakernel").split())


def test_lanes_that_share_a_key_each_have_a_query() -> None:
    assert shared.QUERIES == shared.KEY_LANES
    pairs = (fusion.QUERIES_A_KV_HEAD + 2) * fusion.MOST_LANES // 2
    assert pairs <= 32 * shared.GROUP_WARPS, "one thread rotates a pair of vectors"


def test_fused_instructions_fit_in_shared_memory() -> None:
    """Attention fits where a GEMM has its inputs. A norm's columns fit there or in registers, its gain in a slot."""
    one, several = fusion.NORM_BYTES[1], fusion.NORM_BYTES[shared.MOST_COLUMNS]
    assert megakernel.SCRATCH_BYTES >= fusion.ATTENTION_BYTES
    assert one <= megakernel.SCRATCH_BYTES
    assert shared.MOST_COLUMNS * several <= megakernel.PAIRS_INPUT_BYTES
    assert several <= memory.HELD_BYTES
    assert max(one, several) <= memory.SLOT_BYTES


def test_each_warp_has_one_slice_of_a_piece() -> None:
    assert ins.SLICE_BYTES * shared.GROUP_WARPS == megakernel.PIECE_BYTES


def test_feedback_fits_in_the_memory_of_gemm_inputs() -> None:
    """Feedback stores keys or sums there. The compiler asserts the same of the struct."""
    assert shared.ROW_WORDS == feedback_stages.WORDS
    defined = dict(re.findall(r"#define (\w+) (.*)", feedback.head_of(SamplingKind.top_k)))
    most = max(4 * int(defined["CAPACITY"]), 8 * int(defined["PARTIAL_SUMS"])) + 8 * 34
    assert most <= megakernel.SCRATCH_BYTES
    assert "#define KIND" not in source("megakernel"), "a program needs head_of to feed back"


def test_slots_of_an_h100() -> None:
    least = memory.LEAST_SLOTS
    assert least - (least // 2 - 1) >= megakernel.PASS_TILES, "all slots of a pass can be full"
    found = [memory.slots_of(columns, itemsize, 0, 227 << 10) for columns, itemsize in ((1, 2), (16, 2), (16, 4))]
    assert found == [11, 10, 8]


def test_the_ring_begins_where_bulk_copies_are_fast() -> None:
    text, whole = source("megakernel"), memory.RING_ALIGNMENT_BYTES
    assert f"extern __shared__ __align__({whole}) char shared[]" in text
    assert f"alignas({whole}) char ring[" in text
    sizes = [(columns, itemsize) for columns in (1, shared.MOST_COLUMNS) for itemsize in (2, 4)]
    assert not any(memory.fixed_bytes(columns, itemsize) % whole for columns, itemsize in sizes)
    assert memory.SLOT_BYTES % whole == 0, "each slot is aligned, too"


def test_all_blocks_of_the_launch_can_be_resident() -> None:
    """The launcher counts one block per multiprocessor, with and without pairs."""
    megakernel = imported("launchopt.devices.megakernel.launcher")
    bounds = f"__launch_bounds__(ALL_THREADS, {megakernel.BLOCKS_A_MULTIPROCESSOR})"
    assert source("megakernel").count(bounds) == 2


def test_a_host_that_gives_up_and_the_kernel_agree_on_the_ring() -> None:
    resident = imported("launchopt.devices.resident.kernel")
    assert 1 << resident.CAPACITY_BITS == shared.MOST_CAPACITY
    assert resident.THREADS == 1024
