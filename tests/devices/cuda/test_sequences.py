"""Positions and page tables on a fake of CUDA: requests that find tokens cached start behind them, in every run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.cuda.fake_cuda import fake_cuda
from support.steps.shared_prompts import CACHED, stream_of

from launchopt.devices.arenas import to_host
from launchopt.recording.recorder import Recorder


def test_each_run_starts_behind_the_cached_tokens(tmp_path: Path) -> None:
    stream = stream_of()
    with fake_cuda() as device:
        device.open(stream, Recorder(stream.commands, 64, tmp_path), 0)
        state = device.state_of_sequences
        assert state is not None
        assert to_host(state.table).tolist() == stream.page_table.tolist()
        for _ in range(2):
            device.start(0)
            assert to_host(state.positions).tolist() == [CACHED, CACHED]
            state.positions[...] = np.int32(7)
