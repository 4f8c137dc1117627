"""Of a report's environment: what the manifests say of the machine, said once."""

from __future__ import annotations

from pathlib import Path

from support.results.recorded_runs import manifest, write_run

from launchopt.recording.manifest import write_manifest
from launchopt.report.environment import environment
from launchopt.report.grids import Grid
from launchopt.report.source import read_source


def test_where_polled_words_lie_is_said_where_a_run_has_any(tmp_path: Path) -> None:
    """Manifests of runs without any, as older ones are, say nothing of it."""
    folders = [write_run(tmp_path / name, name) for name in ("old", "new")]
    before = environment(read_source(folders)).machine
    assert not [name for name, _ in before if name.startswith("polled")]
    where = "GPU memory, by BAR1"
    write_manifest(folders[1], manifest("new", polled_words={"persistent": where}))
    (alone,) = (dict(environment(read_source([folder])).machine) for folder in folders[1:])
    assert alone["polled_words.persistent"] == where
    after = environment(read_source(folders)).machine
    (value,) = (value for name, value in after if name.startswith("polled"))
    assert where in value
    assert [each for each in after if each[1] != value] == before


def test_settings_that_differ_stand_below_each_other_and_beside_each_other_for_many_runs(tmp_path: Path) -> None:
    names = [f"arrival.setting_{i}" for i in range(7)]

    def differing(runs: int) -> Grid:
        folders = [write_run(tmp_path / f"{runs}" / str(i), str(i)) for i in range(runs)]
        for i, folder in enumerate(folders):
            write_manifest(folder, manifest(str(i), config={"arrival": {name.partition(".")[2]: i for name in names}}))
        found = environment(read_source(folders)).differing
        assert found is not None
        return found

    few, many = differing(2), differing(9)
    assert [row[0].text for row in few.rows] == names
    assert few.extra == 0
    assert len(many.rows) == 9
    assert [head.text for head in many.heads] == ["run", *names]
    assert many.extra == 2


def test_independent_commands_have_no_order_among_the_settings(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "run")
    write_manifest(run, manifest("run", config={"ordering": "per_request", "seed": 0}))
    assert environment(read_source([run])).config == [("seed", "0")]
