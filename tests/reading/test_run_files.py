"""Files of runs in folders and in an object store: moto's server stands for S3."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer
from support.paths import ROOT

from launchopt.errors import ConfigError, DataError
from launchopt.reading import run_files as module
from launchopt.reading.run_files import place_of, run_files
from runner.dataset import main
from runner.reading import LEFT_OUT

RUNS = ROOT / "outputs/reference/gpu/qkv"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty bucket of the server, as a client of AWS's own library sees it."""
    import boto3
    import s3fs

    settings = {"ENDPOINT_URL": server, "ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "x", "DEFAULT_REGION": "us-east-1"}
    for name, value in settings.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    s3fs.S3FileSystem.clear_instance_cache()
    bucket = boto3.resource("s3").create_bucket(Bucket="results")
    yield bucket
    bucket.objects.all().delete()


def put(bucket: Any, name: str, run: Path) -> None:
    for file in ("summary.parquet", "manifest.json"):
        bucket.upload_file(str(run / file), f"{name}/{file}")


def test_runs_of_a_store_become_the_same_dataset_as_those_of_folders(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 2)  # several groups
    for run in sorted(RUNS.iterdir()):
        put(bucket, f"runs/{run.name}", run)
    remote, local = tmp_path / "remote.parquet", tmp_path / "local.parquet"
    assert main(["s3://results/runs", "--output", str(remote)]) == 0
    assert main([RUNS.as_uri(), "--output", str(local)]) == 0
    assert capsys.readouterr().out == f"180 rows of 12 runs: {remote}\n180 rows of 12 runs: {local}\n"
    ours, theirs = pq.read_table(remote), pq.read_table(local)
    assert ours.drop_columns("folder").equals(theirs.drop_columns("folder"))
    assert ours["folder"][0].as_py() == "s3://results/runs/decode_16_folovllm"
    assert ours["machine"][0].as_py().startswith("NVIDIA H200, cores ")


def test_a_run_that_is_in_the_store_and_in_a_folder_counts_once(
    bucket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(bucket, "0", RUNS / "decode_1_folovllm")
    assert main(["s3://results", str(RUNS / "decode_1_folovllm"), "--output", str(tmp_path / "all.parquet")]) == 0
    assert "15 rows of 1 runs, 1 copy left out" in capsys.readouterr().out.replace("1 run,", "1 runs,")


def test_a_broken_file_of_a_store_is_named_by_its_address_and_left_out(
    bucket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(bucket, "0", RUNS / "decode_1_folovllm")
    bucket.put_object(Key="1/summary.parquet", Body=b"PAR1 but no more")
    assert main(["s3://results", "--force", "--output", str(tmp_path / "all.parquet")]) == 2
    line, last = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: s3://results/1/summary.parquet: cannot be read as Parquet")
    assert last == f"error: {LEFT_OUT}"


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("s3://results/none", "s3://results/none: no such bucket or folder, or nothing in it"),
        ("s3://nobody", "s3://nobody: "),
        ("gs://bucket/x", "DIR=gs://bucket/x: must be a folder, file:///FOLDER or s3://BUCKET/FOLDER"),
        ("simplecache::s3://results", "DIR=simplecache::s3://results: must be a folder"),
        ("s3://results/empty", "no summary.parquet here or below"),
    ],
)
def test_an_address_that_cannot_be_read_is_refused_in_one_line(
    address: str, says: str, bucket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.put_object(Key="empty/x", Body=b"")
    assert main([address, "--output", str(tmp_path / "all.parquet")]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_does_not_answer_is_refused(
    bucket: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    assert main(["s3://results", "--output", str(tmp_path / "all.parquet")]) == 2
    assert "cannot be read (" in capsys.readouterr().err


def test_names_of_a_store_cannot_leave_the_folder_for_copies(bucket: Any) -> None:
    for name in ("../../up", "a//b"):
        put(bucket, name, RUNS / "decode_1_folovllm")
    groups = list(run_files(["s3://results"], "summary"))
    assert {path.parent.parent.name.startswith("launchopt-") for group in groups for path in (group[0].table,)} == {
        True
    }


def test_temporary_copies_are_removed(bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    put(bucket, "0", RUNS / "decode_1_folovllm")
    for (run,) in run_files(["s3://results"], "summary"):
        assert run.table.is_file()
    assert list(tmp_path.iterdir()) == []


def test_folders_are_read_in_groups_each_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 2)
    for name in "abc":
        shutil.copytree(RUNS / "decode_1_folovllm", tmp_path / name)
    found = list(run_files([tmp_path / "b", tmp_path], "summary"))
    assert [[run.folder.rpartition("/")[2] for run in group] for group in found] == [["b"], ["a", "c"]]


def test_a_missing_folder_is_named() -> None:
    with pytest.raises(DataError, match="no such folder"):
        list(run_files([Path("none")], "summary"))
    with pytest.raises(ConfigError, match="must be a folder"):
        place_of("https://example.org/runs")
