"""scripts/cpp_loop, built against cuBLASLt and CUDA on the host: every command is multiplied, and faults are seen."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT, TESTS

from launchopt.analysis.tables import reference
from launchopt.files import read_json
from runner.provenance.origins import origin

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

# As nvcc would: it prints a version, and compiles. The library and the headers are those of tests/support/cublaslt.
NVCC = f"""#!/bin/sh
if [ "$1" = --version ]; then printf 'nvcc\\nfake\\nbuild\\n'; exit; fi
for word; do
    shift
    [ "$word" = -lcublasLt ] || set -- "$@" "$word"
done
exec g++ -Wall -Wextra -Werror -DSCALE=64 -I{TESTS}/support/cublaslt "$@"
"""


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(NVCC)
    nvcc.chmod(0o755)
    monkeypatch.setenv("NVCC", str(nvcc))
    return importlib.import_module("scripts.cpp_loop.measure")


def test_the_loop_and_all_batches_are_measured_for_the_shapes_of_our_tables(measure: Any, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    assert measure.main(["--output", str(folder)]) == 0
    saved = read_json(folder / measure.RESULT)
    shown = read_json(measure.SHOWN)
    for ours, theirs in zip(shown["cpp_loop"]["shapes"], saved["shapes"], strict=True):
        assert (ours["workload"], ours["dtype"]) == (theirs["workload"], theirs["dtype"])
        assert [ours[size] // 64 for size in "mk"] == [theirs[size] for size in "mk"]
        assert list(ours["batch_us"]) == list(theirs["batch_us"])
        assert [len(each) for each in (theirs["loop_us"], *theirs["batch_us"].values())] == [5] * (
            1 + len(theirs["batch_us"])
        )
    assert origin(folder / "manifest.json").machine == "host"

    new = measure.adopted(shown, saved, "here")
    assert new["gpu_kernel_batcher"] == shown["gpu_kernel_batcher"]
    assert new["cpp_loop"]["gpu"] == "host"
    first = new["cpp_loop"]["shapes"][0]
    assert first["loop_us"] == [min(saved["shapes"][0]["loop_us"]), max(saved["shapes"][0]["loop_us"])]
    assert new["cpp_loop"].keys() == shown["cpp_loop"].keys()
    assert first.keys() == shown["cpp_loop"]["shapes"][0].keys()


def test_a_command_that_is_left_out_fails(
    measure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAULT", "1")
    assert measure.main(["--output", str(tmp_path / "new")]) == 1
    assert "wrong output: gemv_micro, batch 1" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_without_nvcc_nothing_is_written(
    measure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NVCC")
    monkeypatch.setattr(measure.shutil, "which", lambda name: None)
    assert measure.main(["--output", str(tmp_path / "new")]) == 2
    assert "no nvcc" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_adopted_figures_are_those_of_a_committed_file(measure: Any) -> None:
    """Reports show the figures that the program saved when it ran on a GPU; skipped until it has."""
    program = read_json(measure.SHOWN)["cpp_loop"]
    if "not kept" in program["source"]:
        pytest.skip("the figures shown are still of the earlier program")
    path = ROOT / program["source"].partition(", ")[2]
    assert json.dumps(measure.adopted(read_json(measure.SHOWN), read_json(path), program["source"])) == json.dumps(
        read_json(Path(str(reference.__file__)).with_name(reference.FILE))
    )
