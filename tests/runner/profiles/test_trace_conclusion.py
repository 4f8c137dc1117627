"""The last lines of `launchopt trace`: what takes the idle time of the GPU, and what to type."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.results.kineto_events import TRACES, call, kernel, written

from runner.profiles.trace import main
from runner.profiles.trace_conclusion import HOST_BOUND, LAUNCH_BOUND, WAITS

LONG_CALLS = [call(0, 30, 1), kernel(31, 2, 1), call(34, 30, 2), kernel(65, 2, 2)]
BUSY_HOST = [call(0, 2, 1), kernel(3, 2, 1), call(60, 2, 2), kernel(63, 2, 2)]
LATE_KERNELS = [call(0, 2, 1), kernel(3, 2, 1), call(6, 2, 2), kernel(63, 2, 2)]


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (LONG_CALLS, ["nothing launched 3%, within a launch call 94%, launched, not begun 3%", LAUNCH_BOUND, "advise"]),
        (BUSY_HOST, ["nothing launched 95%, within a launch call 3%, launched, not begun 2%", HOST_BOUND, "advise"]),
        (LATE_KERNELS, ["nothing launched 2%, within a launch call 3%, launched, not begun 95%", WAITS]),
    ],
)
def test_the_last_lines_say_what_takes_the_idle_time(
    events: list[dict[str, object]], said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, events)
    assert main([str(path)]) == 0
    first, *others = capsys.readouterr().out.rpartition("\n\n")[2].splitlines()
    assert first.endswith(f"Of the idle time: {said[0]}")
    assert others == [f"next: launchopt advise --trace {path}" if each == "advise" else each for each in said[1:]]


def test_idle_time_within_operators_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 34, "dur": 29, "pid": 1, "tid": 1}
    assert main([str(written(tmp_path, [operator, *BUSY_HOST]))]) == 0
    # 3..5 kernel, 34..60 of the operator before its call, 60..62 in the call, 62..63, 63..65 kernel
    assert "nothing launched 95% (45% within operators), within" in capsys.readouterr().out


@pytest.mark.skipif(not TRACES.exists(), reason="no published traces: download them from their sources")
def test_the_host_bounds_the_published_trace_of_bert(capsys: pytest.CaptureFixture[str]) -> None:
    path = TRACES / "h100_bert_small.kineto.json.gz"
    assert main([str(path)]) == 0
    causes = "nothing launched 88% (40% within operators), within a launch call 9%, launched, not begun 3%"
    expected = [f"GPU idle 92% of the time. Of the idle time: {causes}", HOST_BOUND]
    said = capsys.readouterr().out.rpartition("\n\n")[2].splitlines()
    assert said == [*expected, f"next: launchopt advise --trace {path}"]
