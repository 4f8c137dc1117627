"""fused_qkv, fused_epilogue and fused_elementwise on the CPU: fewer launches, and inner outputs are not written.

Verification finds a fault in a fused launch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.steps.launching import recorded
from support.steps.program_interpreter import NONE
from support.steps.programs import stream_of
from support.steps.step_runs import StepRun, batches

from launchopt.arrivals.requests import Requests
from launchopt.command import HALF_BITS, LOW_HALF, Dtype, RecordWord
from launchopt.devices.arenas import POISON_BYTE, from_float32, to_float32
from launchopt.modes import mode_class
from launchopt.modes.base import Takes
from launchopt.recording.launch_rows import CommandColumn, LaunchColumn, Strategy
from launchopt.sampling import Sampling, SamplingKind
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.streams.chains.placement import Origin
from launchopt.streams.chains.program import Program, elementwise_program, linear_epilogue_program
from launchopt.verify.chains.tokens import verify_chain
from launchopt.verify.commands import CheckSettings
from launchopt.workloads.gemv import gemv

GREEDY = Sampling(SamplingKind.greedy)
LAYERS = 2
request_sizes = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)).filter(any), min_size=1, max_size=5)


@dataclass(frozen=True)
class Fusion:
    """A mode, a program in which it fuses rows, the names of a group's rows, and those whose outputs are written."""

    mode: str
    program: str
    names: tuple[str, ...]
    written: tuple[str, ...]


FUSIONS = [
    Fusion("fused_qkv", "qkv", ("q", "k", "v"), ("q", "k", "v")),
    Fusion("fused_qkv", "square", ("q", "k", "v"), ("q", "k", "v")),
    Fusion("fused_epilogue", "linear_epilogue", ("gemm", "bias", "relu"), ("relu",)),
    Fusion("fused_elementwise", "elementwise", ("bias", "relu", "scale"), ("scale",)),
]
of_each = pytest.mark.parametrize("fusion", FUSIONS, ids=lambda fusion: f"{fusion.mode}-{fusion.program}")
in_each_dtype = pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(FUSIONS),
    request_sizes,
    st.sampled_from(Dtype),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([None, 1, 2]),
)
def test_a_group_is_one_launch_and_every_output_is_right(
    fusion: Fusion,
    sizes: list[tuple[int, int]],
    dtype: Dtype,
    layers: int,
    replicas: int,
    most: int,
    seed: int | None,
) -> None:
    stream = stream_of(fusion.program, sizes, dtype, layers, replicas)
    run = StepRun(fusion.mode, stream, most)
    run.run(seed)
    run.check()
    strategies, sizes_of = run.launches(LaunchColumn.STRATEGY), run.launches(LaunchColumn.SIZE)
    found = [size for strategy, size in zip(strategies, sizes_of, strict=True) if strategy == Strategy.fused]
    groups = [
        batch.size * len(fusion.names)
        for batch in batches(stream, most, seed)
        for row in stream.rows(0)
        if row.name == fusion.names[-1]
    ]
    assert found == groups
    assert sum(sizes_of) == stream.commands
    run.close()


@of_each
def test_commands_are_noted_in_the_order_of_the_template(fusion: Fusion) -> None:
    stream = stream_of(fusion.program, [(0, 3), (2, 2)])
    run = StepRun(fusion.mode, stream, 1)
    run.run()
    assert recorded(run.recorder).commands[:, CommandColumn.SEQ].tolist() == list(range(stream.commands))
    run.close()


def rows_left(run: StepRun, request: int) -> dict[tuple[int, str], Any]:
    """Return the outputs of the rows of a request's last decode step, in storage type."""
    stream = run.stream
    flat = run.device.arenas.arrays[stream.activations].reshape(-1)
    found = {}
    for row in stream.rows(stream.decode_kind):
        assert row.c.origin == Origin.LANE
        first = (int(stream.table[request, ChainColumn.LANE]) + row.c.slot) * stream.activations.cols
        found[row.layer, row.name] = flat[first : first + row.m]
    return found


@of_each
@in_each_dtype
def test_what_lies_between_is_not_written_and_not_asked_for(fusion: Fusion, dtype: Dtype) -> None:
    stream = stream_of(fusion.program, [(0, 3)] * 2, dtype, LAYERS)
    run = StepRun(fusion.mode, stream, 2)
    run.run()
    run.check()
    for request in range(2):
        for (_, name), left in rows_left(run, request).items():
            poisoned = (left.view(np.uint8) == POISON_BYTE).all()
            assert poisoned == (name in fusion.names and name not in fusion.written), name
    unwritten = run.mode.unwritten_of(stream)
    assert unwritten == set(fusion.names) - set(fusion.written)
    if unwritten:
        ids = np.zeros(stream.tokens, np.int64)
        asked = verify_chain(stream, run.device.arenas, NONE, ids, CheckSettings(64))
        assert not asked.ok, "else a mode that writes nothing would pass"
        assert asked.wrong == 2 * LAYERS * len(fusion.names)
    run.close()


def plant(run: StepRun, fusion: Fusion, of: Callable[[np.ndarray], bool], name: str, by: float) -> None:
    """Add `by` to the first feature of row `name` in fused launches, for commands for which `of` is true."""
    prepared: Any = run.prepared
    steps: Any = prepared._launch.__self__
    at, slot = fusion.names.index(name), np.uint64(LOW_HALF)

    def faulty(start: int, bind: Any, shape_of: list[int]) -> Any:
        def bound(words: np.ndarray) -> Any:
            compute = bind(words)

            def both() -> None:
                compute()
                for request in range(words.shape[1]):
                    own = words[:, request]
                    if of(own):
                        view = run.device.compute.views[shape_of[start + at]][2]
                        out = view[int(own[at, RecordWord.SLOT_C_REQUEST] & slot)]
                        wide = to_float32(out[:, :1], run.stream.dtype)
                        out[:, :1] = from_float32(wide + np.float32(by), run.stream.dtype)

            return both

        return bound

    for shape_of, groups in steps.kinds.values():
        for start, (stop, bind) in groups.items():
            groups[start] = (stop, faulty(start, bind, shape_of))


def token_of(words: np.ndarray) -> tuple[int, int]:
    """Return the request of the first command, and its step in that request."""
    return int(words[0, RecordWord.SLOT_C_REQUEST] >> HALF_BITS), int(words[0, RecordWord.STEP_TOKEN] & LOW_HALF)


@of_each
@in_each_dtype
def test_a_fault_in_a_fused_output_is_found_and_named(fusion: Fusion, dtype: Dtype) -> None:
    """The fault is in layer 0 of the last step of one request, in each output that is written."""
    tokens = 3
    for name in fusion.written:
        stream = stream_of(fusion.program, [(0, tokens)] * 3, dtype, LAYERS)
        rows = len(stream.rows(0))
        group = [row.name for row in stream.rows(0)].index(fusion.names[0])
        run = StepRun(fusion.mode, stream, 3)
        last = (1, (tokens - 1) * rows + group)
        plant(run, fusion, lambda words, last=last: token_of(words) == last, name, 0.5)
        run.run()
        with pytest.raises(AssertionError, match="of request 1"):
            run.check()
        run.close()


@of_each
def test_a_fault_that_was_written_over_is_found_by_its_token(fusion: Fusion) -> None:
    stream = stream_of(fusion.program, [(0, 4)] * 2, layers=LAYERS)
    rows = [row.name for row in stream.rows(0)]
    name = fusion.written[0]  # for fused_qkv this is q: no command reads k or v
    run = StepRun(fusion.mode, stream, 2)
    early = (0, len(rows) + rows.index(fusion.names[0]))
    plant(run, fusion, lambda words: token_of(words) == early, name, 0.5)
    run.run()
    with pytest.raises(AssertionError, match="token 1 of request 0"):
        run.check()
    run.close()


@pytest.mark.parametrize("fusion", FUSIONS[2:], ids=lambda fusion: fusion.mode)
def test_an_lm_head_behind_the_groups_is_launched_by_itself(fusion: Fusion) -> None:
    programs: dict[str, Callable[[int], Program]] = {
        "linear_epilogue": linear_epilogue_program,
        "elementwise": elementwise_program,
    }
    requests = Requests(np.zeros(2, np.int64), np.array([3, 0]), np.array([2, 3]))
    stream = ChainStream(programs[fusion.program](48), LAYERS, requests, Dtype.fp32, 1, ChainSettings(vocab=90))
    run = StepRun(fusion.mode, stream, 2, sampling=GREEDY)
    run.run()
    run.check()
    alone = [strategy for strategy in run.launches(LaunchColumn.STRATEGY) if strategy != Strategy.fused]
    assert len(alone) == len(list(batches(stream, 2)))
    run.close()


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("fused_qkv", "merges q, k and v, and this workload does not have them as separate GEMMs"),
        ("fused_epilogue", "fuses GEMM, bias and ReLU in a row: this workload has none"),
        ("fused_elementwise", "fuses bias, ReLU and scale in a row: this workload has none"),
    ],
)
def test_what_has_nothing_to_fuse_is_refused(mode: str, why: str) -> None:
    kind = mode_class(mode)
    assert kind.takes is Takes.steps
    fits = {fusion.program for fusion in FUSIONS if fusion.mode == mode}
    for name in ("layer", "paged", "qkv", "square", "linear_epilogue", "elementwise", "linear"):
        stream: Any = stream_of(name, [(0, 2)])
        assert kind.refusal("cpu", stream) == kind.refusal("cuda", stream) == (None if name in fits else why)
    assert kind.refusal("cpu", gemv(2, 1, 2, 4, Dtype.fp32, 4)) == why
