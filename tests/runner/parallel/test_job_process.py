"""The process that runs jobs: it takes a GPU for the first job that needs one, before the children start."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from runner import job_process
from runner.config.groups import DeviceKind
from runner.parallel.records import About
from runner.plan import gpus


@pytest.mark.parametrize(("is_here", "expected"), [(True, "2,3"), (False, "0")])
def test_only_a_job_that_may_run_on_a_gpu_takes_one(
    is_here: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    did = list[str | None]()
    monkeypatch.setattr(job_process.children, "dismiss", lambda: did.append("children end"))
    monkeypatch.setattr(gpus, "take", did.append)
    monkeypatch.setenv(gpus.OWN, "")
    monkeypatch.setenv(gpus.VISIBLE, "0")
    about = About(varies_batching=False, at_once=2, cores=0, is_here=is_here, visible="2,3", working="/")
    job_process._take_gpu(about, OmegaConf.create({"device": {"kind": DeviceKind.cpu}}))
    assert did == []
    for composed in ({"device": {"kind": DeviceKind.cuda}}, {"device": {"kind": "${missing}"}}):
        did.clear()
        job_process._take_gpu(about, OmegaConf.create(composed))
        assert did == ["children end", expected]
    monkeypatch.setenv(gpus.OWN, "GPU-a")
    did.clear()
    job_process._take_gpu(about, OmegaConf.create({"device": {"kind": DeviceKind.auto}}))
    assert did == []


@pytest.mark.parametrize(
    ("at_once", "cores", "seen", "expected"),
    [(4, 0, 2, 4), (12, 2, 16, 8), (3, 2, 16, 3), (12, 8, 8, 1), (12, 8, 2, 1)],
)
def test_jobs_of_a_cluster_divide_a_machine_by_the_cores_that_each_is_given(
    at_once: int, cores: int, seen: int, expected: int
) -> None:
    about = About(varies_batching=False, at_once=at_once, cores=cores, is_here=False, visible=None, working="/")
    assert about.on_cores(seen) == expected
