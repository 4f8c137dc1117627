"""What counts as finished, and as the same config."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.config.composing import composed
from support.results.summary_rows import row, write

from launchopt.errors import ConfigError, DataError
from launchopt.files import temporary_for
from runner.run import resume
from runner.run.folder_lock import FolderError
from runner.run.resume import OUTPUTS, clear, config_hash, is_done, newest_sweep, require_own

values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
configs = st.dictionaries(st.text(min_size=1), values | st.dictionaries(st.text(), values), min_size=1)
CONFIG = {"seed": 0, "batching": {"max_batch": 4, "timeout_us": 150.0}, "resume": False}


@given(configs)
def test_a_hash_survives_the_manifest_and_the_order_of_keys(config: dict[str, Any]) -> None:
    read = json.loads(json.dumps(config))
    assert config_hash(dict(reversed(read.items()))) == config_hash(config)


@given(configs, st.data())
def test_settings_that_leave_results_alone_are_not_in_it_and_all_others_are(
    config: dict[str, Any], data: st.DataObject
) -> None:
    passing = data.draw(st.dictionaries(st.sampled_from(resume.PASSING), values))
    kept = {key: value for key, value in config.items() if key not in resume.PASSING}
    assert config_hash(kept | passing) == config_hash(kept)
    assert config_hash(kept | {"one more": 1}) != config_hash(kept)


def test_the_order_of_fusions_is_not_in_it() -> None:
    one, other = ({"mode": {"name": "graph", "fuse": fuse}} for fuse in (["norm", "silu"], ["silu", "norm"]))
    assert config_hash(one) == config_hash(other) != config_hash({"mode": {"name": "graph", "fuse": ["norm"]}})


def test_a_run_from_before_a_setting_existed_is_the_same_as_one_with_its_value() -> None:
    old = {"mode": {"name": "coalesced"}, "model": {"name": "tiny"}}
    new = {
        "mode": {"name": "coalesced", "cached": None, "tokens": None},
        "model": {"name": "tiny", "norm_epsilon": 1e-5},
    }
    assert config_hash(new) == config_hash(old)
    assert config_hash(new | {"model": {"name": "tiny", "norm_epsilon": 1e-6}}) != config_hash(old)
    assert config_hash(new | {"mode": {"name": "coalesced", "cached": 7}}) != config_hash(old)
    before = {"scheduler": {"kind": "continuous"}, "workload": {"name": "layer"}}
    off = {"scheduler": {"kind": "continuous", "prefixes": "none", "prefix_blocks": None}}
    assert config_hash(before | off) == config_hash(before)
    assert config_hash(before | {"workload": {"name": "layer", "shared_prefix": 0}}) == config_hash(before)
    assert config_hash(before | {"workload": {"name": "layer", "shared_prefix": 8}}) != config_hash(before)


def test_every_setting_of_the_config_is_hashed_or_passing() -> None:
    config = resume.plain(composed("device=cpu"))
    assert set(resume.PASSING) <= set(config)
    for key in config:
        changed = config_hash(config | {key: "something else"}) != config_hash(config)
        assert changed == (key not in resume.PASSING), key


def left(folder: Path, manifest: dict[str, Any] | str, has_summary: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    (folder / "manifest.json").write_text(text)
    if has_summary:
        write(folder, [row()])
    return folder


OK = {"schema_version": 4, "status": "ok", "repeats_done": 1, "config": CONFIG, "config_hash": config_hash(CONFIG)}


@pytest.mark.parametrize(
    ("manifest", "has_summary", "done"),
    [
        (OK, True, True),
        ({"status": "ok", "config": CONFIG}, True, True),  # written before there was a hash
        (OK, False, False),
        *((OK | {"status": status}, True, False) for status in ("running", "failed", "interrupted", "killed", "new")),
        ({"status": "refused", "error": "..."}, False, False),
    ],
)
def test_finished_is_what_ended_well(manifest: dict[str, Any], has_summary: bool, done: bool, tmp_path: Path) -> None:
    assert is_done(left(tmp_path, manifest, has_summary), CONFIG | {"resume": True}, "hydra.run.dir") is done


@pytest.mark.parametrize("name", ["summary.parquet", "histograms.parquet", "launches.parquet"])
@pytest.mark.parametrize("keep", [0, 100, -9])
def test_a_run_whose_tables_cannot_be_read_is_not_finished(
    name: str, keep: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = left(tmp_path, OK) / name
    if name != "summary.parquet":
        pq.write_table(pa.table({"x": range(1000)}), path)
    assert is_done(tmp_path, CONFIG, "hydra.run.dir")
    path.write_bytes(path.read_bytes()[:keep])
    assert not is_done(tmp_path, CONFIG, "hydra.run.dir")
    out = capsys.readouterr().out
    assert out.startswith(f"{path}: ")
    assert out.endswith(": the run is not finished, and runs again\n")


def test_a_run_that_lacks_rows_is_not_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not is_done(left(tmp_path, OK | {"repeats_done": 2}), CONFIG, "hydra.run.dir")
    assert "summary.parquet: has 1 of 2 rows: the run is not finished" in capsys.readouterr().out


FOREIGN = {
    "summary.parquet": pq.write_table,
    "manifest.json": lambda _, path: path.write_text('{"status": "ok"}'),
    "histograms.parquet": lambda _, path: path.write_bytes(b""),
    "traceback.txt": lambda _, path: path.write_text("mine"),
    "launches.parquet": lambda _, path: os.mkfifo(path),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_files_of_other_programs_are_not_replaced(name: str, tmp_path: Path) -> None:
    require_own("hydra.run.dir", left(tmp_path / "own", OK), OUTPUTS, force=False)
    FOREIGN[name](pa.table({"mine": [1]}), tmp_path / name)
    with pytest.raises(FolderError, match=f"{name} was not made by launchopt; force=true replaces it"):
        require_own("hydra.run.dir", tmp_path, OUTPUTS, force=False)
    require_own("hydra.run.dir", tmp_path, OUTPUTS, force=True)


def test_a_folder_without_a_run_is_not_done(tmp_path: Path) -> None:
    assert not is_done(tmp_path / "nowhere", CONFIG, "hydra.run.dir")


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        ({"seed": 1, "batching": {"max_batch": 5, "timeout_us": 150.0}}, "differs in batching.max_batch, seed;"),
        (CONFIG | {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}, "differs in a, b, c, d and 1 more;"),
        (["not", "a", "config"], "differs in batching.max_batch, batching.timeout_us, seed;"),
    ],
)
def test_a_finished_run_of_another_config_is_not_overwritten(theirs: Any, named: str, tmp_path: Path) -> None:
    manifest = {"status": "ok", "config": theirs, "config_hash": "another"}
    with pytest.raises(FolderError, match=named) as caught:
        is_done(left(tmp_path, manifest), CONFIG, "hydra.run.dir")
    assert str(caught.value).startswith(f"hydra.run.dir={tmp_path}: holds a finished run of another config")


AUTO = ("mode=auto: engine+graph, measured in this work, mine",)


@pytest.mark.parametrize(
    ("theirs", "notices", "named"),
    [
        (CONFIG | {"mode": {"name": "graph"}}, AUTO, "for which mode=auto took graph; by what is measured since it "),
        (CONFIG | {"mode": {"name": "graph"}, "seed": 9}, AUTO, "of another config, which differs in mode.name, seed;"),
        (CONFIG | {"mode": {"name": "graph"}}, (), "of another config, which differs in mode.name;"),
    ],
)
def test_a_run_whose_mode_measurements_chose_is_not_replaced_when_they_choose_another_one(
    theirs: dict[str, Any], notices: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    earlier = ["device: cpu", "mode=auto: graph, expected to be the fastest by 1 measured work"]
    manifest = OK | {"config": theirs, "config_hash": config_hash(theirs), "notices": earlier}
    ours = CONFIG | {"mode": {"name": "engine"}}
    with pytest.raises(FolderError) as error:
        is_done(left(tmp_path, manifest), ours, "hydra.run.dir", notices)
    assert f"holds a finished run {named}" in str(error.value)
    if "took" in named:
        assert "it takes engine+graph (mode=graph resumes that run); choose another output folder" in str(error.value)


def test_a_manifest_that_cannot_be_read_is_no_licence_to_overwrite(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read as JSON"):
        is_done(left(tmp_path, "{"), CONFIG, "hydra.run.dir")


def test_only_what_a_run_leaves_is_cleared(tmp_path: Path) -> None:
    runs = ("launches.parquet", "traceback.txt", ".launchopt-launches.parquet.7.tmp")
    kept = (
        "notes.txt",
        "my.parquet",
        ".launchopt.lock",
        ".notes.tmp",
        ".launches.parquet.7.tmp",
        "torch-mine-0.json.gz",
    )
    for name in (*runs, *kept):
        (tmp_path / name).touch()
    trace = temporary_for(tmp_path / "torch-graph-0.json.gz", "gz")
    gzip.open(trace, "wb").close()
    trace.rename(tmp_path / "torch-graph-0.json.gz")
    gzip.open(tmp_path / "torch-mine-0.json.gz", "wb").close()
    pq.write_table(pa.table({"mine": [1]}), tmp_path / "tokens.parquet")
    (tmp_path / "report.md").write_text("# Report\n\nMy own words")
    clear(left(tmp_path, OK))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "report.md", "tokens.parquet"])
    clear(tmp_path, force=True)
    assert not (tmp_path / "tokens.parquet").exists()


def test_reports_of_a_replaced_run_go_with_it(tmp_path: Path) -> None:
    for name in ("report.md", "report.html", "frontier.md", "strategies.md", "own.md", "frontier.json"):
        text = {".md": "# Report\n\nMedian over repeats.", ".html": '<meta name="generator" content="launchopt">'}
        (left(tmp_path, OK) / name).write_text(text.get(Path(name).suffix, "{}"))
    (tmp_path / "own.md").write_text("own")
    clear(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frontier.json", "own.md"]


def test_the_newest_sweep_with_the_same_overrides_is_resumed(tmp_path: Path) -> None:
    words = ["seed=1,2", "mode=graph"]
    for name, started, overrides in (
        ("b", "2026-01-02", words),
        ("a", "2026-01-03", words),
        ("c", "2026-01-04", ["seed=1,2"]),
        ("d", "2026-01-04", words[::-1]),  # jobs would have other numbers
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sweep.json").write_text(json.dumps({"started_utc": started, "overrides": overrides}))
    for name, text in (("e", "{"), ("f", "[]"), ("g", '{"started_utc": 5, "overrides": []}'), ("h", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sweep.json").write_text(text)
    typed = ["seed=1,2", "resume=true", "mode=graph", "++job_timeout_s=5"]
    assert newest_sweep(tmp_path, typed) == tmp_path / "a"
    with pytest.raises(ConfigError, match=r"^resume=true: no sweep with these overrides in "):
        newest_sweep(tmp_path, ["seed=3"])
    with pytest.raises(ConfigError):
        newest_sweep(tmp_path / "nowhere", typed)
