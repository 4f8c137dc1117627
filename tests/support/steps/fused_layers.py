"""Instructions of a layer whose sizes allow every fusion, and random layers of other sizes."""

from __future__ import annotations

from hypothesis import strategies as st

from launchopt.command import Dtype
from launchopt.devices.instructions.words import Instructions, groups_of
from launchopt.devices.steps.stages import step_of
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.program import layer_program
from launchopt.streams.model import ModelShape
from support.megakernel.instruction_runs import InstructionRun
from support.steps.programs import requests_of

MODEL = ModelShape("small", 256, 2, 8, 2, 32, 384)
TOKENS = 4
# Groups of a layer's rows that are fused.
ATTENTION = "rope+kv_write+qk+softmax+av"
STAGES = ("norm1+qkv", ATTENTION, "o+add1", "norm2+gate_up+silu_mul", "down+add2")


def layer_stream(
    requests: int, dtype: Dtype = Dtype.fp32, layers: int = 1, model: ModelShape = MODEL, page: int | None = None
) -> ChainStream:
    """Return a stream of requests of a few tokens each, without prompts."""
    program = layer_program(model, 2 * TOKENS, page)
    return ChainStream(program, layers, requests_of([(0, TOKENS)] * requests), dtype, 1)


def compiled(stream: ChainStream, fuse: bool = True) -> Instructions:
    """Return the instructions of a decode step of all requests."""
    return InstructionRun(stream, fuse=fuse).compiler.compile(step_of(stream, stream.requests, 0))


def names_of(stream: ChainStream) -> list[str]:
    """Return the names of the rows of a decode step."""
    return [row.name for row in stream.rows(stream.decode_kind)]


def stages_of(program: Instructions, names: list[str]) -> list[str]:
    """Return the names of the rows of each fused group, joined by +."""
    return ["+".join(names[i] for i in group) for group in groups_of(program)]


@st.composite
def layer_streams(draw: st.DrawFn) -> ChainStream:
    """Draw layers that allow some or all of the fusions, with random requests."""
    q_heads, kv_heads = draw(st.sampled_from([(2, 1), (3, 3), (4, 2)]))
    model = ModelShape(
        "any",
        draw(st.sampled_from([64, 128, 72])),
        2,
        q_heads,
        kv_heads,
        draw(st.sampled_from([16, 32, 24])),
        draw(st.sampled_from([64, 128, 100])),
        gated=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
    )
    sizes = st.tuples(st.integers(0, 3), st.integers(0, 4)).filter(any)
    requests = requests_of(draw(st.lists(sizes, min_size=1, max_size=4)))
    program = layer_program(model, requests.longest, draw(st.sampled_from([None, 4])))
    return ChainStream(
        program, draw(st.integers(1, 3)), requests, draw(st.sampled_from(Dtype)), draw(st.integers(1, 2))
    )
