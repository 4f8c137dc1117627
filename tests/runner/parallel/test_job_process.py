"""The process that runs jobs: it takes a GPU for the first job that needs one, before the children start."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from launchopt.errors import RunError
from runner.config.groups import DeviceKind
from runner.parallel import job_process
from runner.parallel.records import About, Records
from runner.parallel.worker import handed_on
from runner.plan import gpus
from runner.run.sweep import SweepJob


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


@pytest.mark.parametrize("work", ["this", "another"])
def test_a_job_waits_until_those_of_lower_numbers_have_begun(work: str, tmp_path: Path) -> None:
    records = Records(tmp_path)
    with records.opened():
        records.tell(About(varies_batching=True, at_once=2, cores=0, is_here=True, visible=None, working="/"))
        job = job_process.OneJob(records)
        job.add(SweepJob(1, []), tmp_path / "1")

        def late() -> None:
            time.sleep(0.3)
            records.save(SweepJob(0, [], folder="0", status="ok"), work)

        threading.Thread(target=late).start()
        twin = job.twin_of("this")
    assert (twin.job if twin else None) == (0 if work == "this" else None)


def test_a_job_does_not_wait_for_ever_for_one_that_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_process, "BEGIN_S", 0.2)
    records = Records(tmp_path)
    with records.opened():
        records.tell(About(varies_batching=True, at_once=2, cores=0, is_here=True, visible=None, working="/"))
        job = job_process.OneJob(records)
        job.add(SweepJob(2, []), tmp_path / "2")
        assert job.twin_of("this") is None


def test_a_machine_that_does_not_see_the_sweeps_folder_is_named_and_keeps_no_empty_folder(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    (sweep / "0").mkdir(parents=True)
    with pytest.raises(RunError, match=r"does not see the files of the sweep in it; hydra\.sweep\.dir must lie in"):
        handed_on(SweepJob(0, []), OmegaConf.create(), sweep / "0", sweep)
    assert list(tmp_path.iterdir()) == []
