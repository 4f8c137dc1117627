"""A manifest comes back as it was written, and what is none is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from support.processes.own_process import environ_of

from launchopt.errors import DataError
from launchopt.recording.manifest import SCHEMA_VERSION, read_manifest, read_manifests, usable_manifest, write_manifest

NOTHING_RUN = """
import contextlib, sys
from runner.cli import run
with contextlib.suppress(SystemExit):
    run({words})
sys.exit(3 if {{"pyarrow", "numba"}} & set(sys.modules) else 0)
"""


def test_round_trip(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"status": "running"})
    write_manifest(tmp_path, {"status": "ok", "folder": Path("somewhere")})
    assert read_manifest(tmp_path) == {"schema_version": SCHEMA_VERSION, "status": "ok", "folder": "somewhere"}
    assert [file.name for file in tmp_path.iterdir()] == ["manifest.json"]


def test_a_missing_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_manifest(tmp_path)
    assert str(caught.value) == f"{tmp_path / 'manifest.json'}: no manifest: not a folder of a run"


def test_a_broken_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"status": ')
    with pytest.raises(DataError, match=r"manifest\.json: cannot be read as JSON \(Expecting value"):
        read_manifest(tmp_path)


def test_what_is_no_object_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(DataError, match=r"manifest\.json: not the manifest of a run"):
        read_manifest(tmp_path)


def test_several_come_in_path_order_from_folders_and_beside_files(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / "s" / name).mkdir(parents=True)
        write_manifest(tmp_path / "s" / name, {"run_id": name})
    (beside := tmp_path / "s" / "b" / "summary.parquet").touch()
    assert [each["run_id"] for each in read_manifests([tmp_path, beside])] == ["a", "b", "b"]


@pytest.mark.parametrize("words", [["workload=nope"], ["workload.m=-3"], ["mode=help"]])
def test_who_runs_nothing_waits_for_no_reader_of_tables(words: list[str], tmp_path: Path) -> None:
    """pyarrow and numba take longer than all else that a refusal needs."""
    code = NOTHING_RUN.format(words=words)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ_of(), check=False, stderr=PIPE)
    assert done.returncode == 0, done.stderr.decode()


def test_keys_of_a_wrong_type_are_named_and_the_rest_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good: dict[str, Any] = {
        "run_id": "a",
        "status": "ok",
        "refused": {"graph": "no"},
        "runs": [{"mode": "x", "state": {}}],
    }
    write_manifest(tmp_path, good)
    assert usable_manifest(tmp_path) == {"schema_version": SCHEMA_VERSION, **good}
    assert capsys.readouterr().err == ""
    write_manifest(
        tmp_path, good | {"run_id": ["a"], "refused": 7, "environment": {"device": "H200", "python": "3.11"}}
    )
    found = usable_manifest(tmp_path)
    assert found is not None
    assert "run_id" not in found
    assert found["status"] == "ok"
    assert found["environment"] == {"python": "3.11"}
    text = "shown without keys of a wrong type: run_id, refused, environment.device"
    assert capsys.readouterr().err == f"warning: {tmp_path}/manifest.json: {text}\n"


@pytest.mark.parametrize("content", ["[]", "{", "", "3", "[" * 60 + "]" * 60])
def test_a_manifest_that_is_none_is_named(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert usable_manifest(tmp_path) is None
    (tmp_path / "manifest.json").write_text(content)
    assert usable_manifest(tmp_path) is None
    assert read_manifests([tmp_path]) == []
    assert capsys.readouterr().err.count("\n") == 1


def test_halves_of_surrogate_pairs_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"status": "ok", "run_id": "\\ud800", "config": {"\\udfff": 1}}')
    assert read_manifest(tmp_path) == {"status": "ok", "run_id": "?", "config": {"?": 1}}
