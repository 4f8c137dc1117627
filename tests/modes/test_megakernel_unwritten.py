"""mode=megakernel does not store the outputs of a norm that is fused into a GEMM; other norms are checked."""

from __future__ import annotations

import numpy as np
import pytest
from support.megakernel.instruction_runs import InstructionRun
from support.steps.programs import requests_of

from launchopt.command import Dtype, Op
from launchopt.devices.instructions.words import Word
from launchopt.devices.steps.stages import step_of
from launchopt.modes.megakernel import MegakernelMode
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.program import layer_program
from launchopt.streams.model import ModelShape


@pytest.mark.parametrize(
    ("hidden", "dtype"), [(2048, Dtype.fp32), (2112, Dtype.fp32), (4096, Dtype.bf16), (4224, Dtype.bf16)], ids=str
)
def test_norms_are_checked_where_they_are_instructions_of_their_own(hidden: int, dtype: Dtype) -> None:
    program = layer_program(ModelShape("wide", hidden, 1, 1, 1, 32, 64), 4)
    stream = ChainStream(program, 1, requests_of([(0, 2)]), dtype, 1)
    rows = InstructionRun(stream, fuse=True).compiler.compile(step_of(stream, 1, 0))
    norms = rows[rows[:, Word.OP] == Op.NORM, Word.FUSED]
    assert len(norms) == 2
    unwritten = MegakernelMode.unwritten_of(stream)
    assert np.all((norms > 0) == bool(unwritten))
    assert unwritten <= {node.name for node in program.layer if node.op is Op.NORM}
