"""What tracers cost: each beside the same run without one."""

from __future__ import annotations

import pytest

from launchopt.analysis.profiles.overheads import ATTACHED, CUPTI, TORCH, UNTRACED, overheads, overheads_markdown
from launchopt.recording import results
from launchopt.recording.results import Row


def row(run_id: str, mode: str, wall_ms: float, *, traced: bool, host_ns: float = 1e3, status: str = "ok") -> Row:
    fixed = {"workload": "gemv_micro", "dtype": "fp32", "device": "cuda", "gpu": "G", "commands": 100, "verified": True}
    own = {"run_id": run_id, "mode": mode, "wall_ms": wall_ms, "traced": traced, "status": status}
    return dict.fromkeys(results.SUMMARY.names) | fixed | own | {"host_submit_ns_per_launch": host_ns}


ROWS = [
    *(row("plain", "batched", wall_ms, traced=False) for wall_ms in (10.0, 12.0, 11.0)),
    row("nsys", "batched", 22.0, traced=True, host_ns=3e3),
    row("cupti", "batched", 16.5, traced=True, host_ns=2e3),
    row("cupti", "graph", 5.0, traced=True),
    row("torch", "torch_eager", 9.0, traced=True),
    row("plain", "graph", 1.0, traced=False, status="failed: wrong"),
]
TIMING = {"plain": "events", "nsys": "events", "cupti": "cupti", "torch": "torch"}


def test_each_tracer_over_none_of_the_same_mode() -> None:
    found = {(each.mode, each.tracer): each for each in overheads(ROWS, TIMING)}
    assert list(found) == [
        *(("batched", tracer) for tracer in (UNTRACED, CUPTI, ATTACHED)),
        ("graph", CUPTI),
        ("torch_eager", TORCH),
    ]
    assert (found["batched", UNTRACED].wall_ms, found["batched", UNTRACED].wall_ratio) == (11.0, None)
    assert (found["batched", CUPTI].wall_ratio, found["batched", CUPTI].host_ratio) == (1.5, 2.0)
    assert (found["batched", ATTACHED].wall_ratio, found["batched", ATTACHED].host_us) == (2.0, 3.0)
    assert found["graph", CUPTI].wall_ratio is None, "its untraced run failed"


@pytest.mark.parametrize(("ours", "agrees"), [(101.0, False), (100.0, True)])
def test_agreements_are_shown_as_they_are(ours: float, agrees: bool) -> None:
    one = {"what": "kernels", "by": "nsys", "theirs": 100.0, "ours": ours, "limit": 0.0, "agrees": agrees}
    text = overheads_markdown(ROWS, TIMING, [one])
    assert f"| kernels | nsys | 100 | {ours:.0f} | {ours - 100:+.3f}% | none | {'yes' if agrees else 'NO'} |" in text
    assert "| batched | timing=cupti | 1 | 16.5 (1.50x) | 2 (2.00x) |" in text
