"""kernels/megakernel/gate.cuh on the host (cuda_on_host): launches that start before their commands exist."""

from __future__ import annotations

import pytest
from support.cuda_on_host import can_build
from support.megakernel.gated_runs import Gated
from support.megakernel.kernel_runs import PROGRAMS, TOKENS, KernelRun, after_all_steps
from support.steps.programs import requests_of

from launchopt.command import Dtype
from launchopt.streams.chains.chain import ChainStream

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")


@pytest.mark.parametrize(("name", "requests"), [("decode", 1), ("decode", 3), ("large", 1), ("layer", 2)], ids=str)
def test_launches_that_wait_for_their_commands(name: str, requests: int) -> None:
    """Admitted launches give the same results as others. Lists have fewer, or more, weights than the ring has slots."""
    stream = ChainStream(PROGRAMS[name], 1, requests_of([(0, TOKENS)] * requests), Dtype.bf16, 1)
    ours, theirs = after_all_steps(Gated(stream)), after_all_steps(KernelRun(stream))
    assert ours.launches == theirs.launches >= TOKENS - 1
    assert ours.contents() == theirs.contents()
    assert ours.verify().ok
