"""The example of docs/plugins.md, installed by pip: its mode, workload, arrival and model run, and results name it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
from support.paths import ROOT
from support.processes.ended_runs import Keeper, Ran
from support.processes.plugged_site import put_launchopt, seeing

EXAMPLE = ROOT / "docs/examples/launchopt-example"
LABEL = "launchopt-example 0.1.0"
OFFLINE = ("--quiet", "--no-input", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index")
SMALL = "device=cpu workload.cache=hot timing=host"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pip")
    sources, folder = tmp_path_factory.mktemp("sources") / "example", tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLE, sources, ignore=shutil.ignore_patterns("__pycache__"))
    call = [sys.executable, "-m", "pip", "install", *OFFLINE, "--no-compile", "--target", folder, sources]
    done = subprocess.run(call, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    put_launchopt(folder)
    return folder


@pytest.fixture(scope="module")
def runner(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Ran]]:
    """Call `python -m runner` where the example is installed. One process answers all calls."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", seeing(site)["PYTHONPATH"])
        keeper = Keeper(folder / "stderr")
    names = iter("abcdefghijklmnop")

    def run(words: str) -> Ran:
        (here := folder / next(names)).mkdir()
        return keeper.run(words, here)

    yield run
    keeper.close()


def test_mode_and_workload_run_in_the_children_and_are_verified(runner: Callable[[str], Ran]) -> None:
    ran = runner(
        f"{SMALL} mode=halves mode.parts=2 workload=bottleneck workload.hidden=64 workload.narrow=16 workload.layers=2 "
        "workload.requests=4 workload.tokens=3 against=[baseline] repeats=1"
    )
    assert (ran.exit_code, ran.stderr) == (0, "")
    rows = pd.read_parquet(ran.written / "summary.parquet").set_index("mode")
    assert rows[["status", "verified", "workload"]].values.tolist() == [["ok", True, "bottleneck"]] * 2
    launches = pd.read_parquet(ran.written / "launches.parquet").groupby("mode")["batch_size"]
    assert launches.sum().to_dict() == {"halves": 4 * 3 * 2 * 3, "baseline": 4 * 3 * 2 * 3}
    assert launches.max().to_dict() == {"halves": 2, "baseline": 1}, "half of four requests"
    manifest = json.loads((ran.written / "manifest.json").read_text())
    assert manifest["plugins"] == {"mode=halves": LABEL, "workload=bottleneck": LABEL}
    assert manifest["environment"]["packages"]["launchopt-example"] == "0.1.0"
    line = f"plugins: mode=halves of {LABEL}, workload=bottleneck of {LABEL}"
    assert line in manifest["notices"]
    assert f"\n{line}\n" in ran.stdout


def test_a_folder_of_configs_uses_plugins_in_a_sweep(runner: Callable[[str], Ran], tmp_path: Path) -> None:
    files = {
        "workload/small.yaml": "defaults:\n  - /schema/workload/bottleneck@_here_\n  - _self_\n"
        "name: small\nhidden: 64\nnarrow: 8\nlayers: 1\ntokens: 2\nrequests: 2\ncache: hot\n",
        "model/narrow.yaml": "defaults:\n  - smollm2_135m\n  - _self_\nname: narrow\nlayers: 1\n",
        "experiment/nightly.yaml": "# @package _global_\ndefaults:\n  - override /workload: small\n"
        "  - override /mode: halves\n  - override /arrival: ramp\n  - override /device: cpu\n"
        "arrival:\n  rate_per_s: 1000\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      mode.parts: 1,2\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    ran = runner(f"--config-dir {tmp_path} experiment=nightly timing=host")
    assert (ran.exit_code, ran.stderr) == (0, "")
    for (row, folder), parts in zip(ran.jobs(), (1, 2), strict=True):
        assert (row["status"], row["verified"], row["workload"], row["arrival"]) == ("ok", True, "small", "ramp")
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["config"]["mode"]["parts"] == parts
        assert set(manifest["plugins"]) == {"mode=halves", "workload=bottleneck", "arrival=ramp"}
    shown = runner(f"--config-dir {tmp_path} model=narrow workload=decode --cfg job").stdout
    assert "\n  name: narrow\n  hidden: 576\n  layers: 1\n" in shown


def test_a_run_of_another_version_is_not_resumed(runner: Callable[[str], Ran], site: Path, tmp_path: Path) -> None:
    words = f"{SMALL} mode=halves workload.m=64 workload.k=64 workload.commands=8 hydra.run.dir={tmp_path / 'run'}"
    assert runner(words).exit_code == 0
    again = runner(f"{words} resume=true")
    assert (again.exit_code, again.stdout.partition(":")[0]) == (0, "skipped")
    manifest = tmp_path / "run/manifest.json"
    ran = f'"mode=halves": "{LABEL}"'
    manifest.write_text(manifest.read_text().replace(ran, ran.replace("0.1.0", "9")))
    other = runner(f"{words} resume=true")
    assert other.exit_code == 2
    assert f"mode=halves was of launchopt-example 9, now {LABEL}" in other.stderr
    assert other.stderr.count("\n") == 1


def test_its_settings_are_checked_and_shown_in_the_help(runner: Callable[[str], Ran]) -> None:
    refused = runner("mode=halves mode.parts=65")
    assert (refused.exit_code, refused.stderr) == (2, "error: mode.parts=65: out of range; allowed: from 1 to 64\n")
    refused = runner("mode=halves mode.prats=2")
    assert refused.stderr.endswith("did you mean mode.parts?\n")
    text = runner("--help mode=halves model=smollm2_135m").stdout
    assert re.search(r"^  halves +of launchopt-example 0.1.0: A bucket in halves", text, re.MULTILINE)
    assert re.search(r"^  mode.parts=2 +launches a bucket \(from 1 to 64\)", text, re.MULTILINE)
    assert "small_1024, smollm2_135m, tiny" in text
