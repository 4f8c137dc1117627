"""CONTRIBUTING.md is part of the product: its mode, workload and column are found by being there, and work."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pandas as pd
import pytest
from support.paths import ROOT
from support.processes.own_process import environ_of

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
COLUMNS = "launchopt/recording/summary_columns.py"
END_OF_COLUMNS = "\n)\n\nSUMMARY = schema("
# The whole files that the text shows, by their path.
FILES = dict(re.findall(r"`(launchopt/\w+/\w+\.py)`[^\n]*\n\n```python\n(\"\"\".*?)```", TEXT, re.S))
MODE, WORKLOAD = "launchopt/modes/pairs.py", "launchopt/workloads/mlp.py"


def entry() -> str:
    """The column that the text shows, as it stands in the list."""
    found = re.search(r"```python\n(column\(\n.*?)```", TEXT, re.S)
    assert found
    return indent(found[1].rstrip().removesuffix(",") + ",", "    ")


def command(start: str) -> list[str]:
    """The one command of the text that begins so."""
    (line,) = [line for line in TEXT.splitlines() if line.startswith(start)]
    return shlex.split(line)[2:]


@pytest.fixture(scope="module")
def copy(pytestconfig: pytest.Config) -> Path:
    """The packages, with the examples put into them and nothing else changed.

    They always lie in the same folder of pytest's cache, with the files' own times, so that their machine code is
    found again.
    """
    assert pytestconfig.cache
    folder = pytestconfig.cache.mkdir("contributing") / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in ("conf", "launchopt", "runner"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path, source in FILES.items():
        assert not (ROOT / path).exists(), "an example that is already there shows nothing"
        (folder / path).write_text(source)
    columns = (folder / COLUMNS).read_text()
    assert columns.count(END_OF_COLUMNS) == 1
    (folder / COLUMNS).write_text(columns.replace(END_OF_COLUMNS, f"\n{entry()}{END_OF_COLUMNS}"))
    return folder


def call(copy: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=copy,
        env=environ_of(copy),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def test_the_text_shows_a_mode_and_a_workload() -> None:
    assert set(FILES) == {MODE, WORKLOAD}
    assert all(len(source.splitlines()) <= 60 for source in FILES.values())


def test_the_mode_runs_as_written_with_its_option_and_the_column_is_filled(copy: Path) -> None:
    folder = copy / call(copy, *command("python -m runner mode=")).splitlines()[-1]
    rows = pd.read_parquet(folder / "summary.parquet").set_index("mode")
    assert set(rows.index) == {"pairs", "baseline"}
    assert rows[["status", "verified", "commands"]].values.tolist() == [["ok", True, 64]] * 2
    assert rows.loc["baseline", "launch_calls"] == 64
    launches = pd.read_parquet(folder / "launches.parquet")
    sizes = launches[launches["mode"] == "pairs"]["batch_size"]
    assert sizes.max() == 4
    assert (len(sizes), sizes.sum()) == (rows.loc["pairs", "launch_calls"], 64)
    spent = rows["host_submit_ns_per_launch"] * rows["launch_calls"] / rows["commands"]
    assert rows["launch_ns_per_command"].tolist() == spent.tolist()


def test_the_workload_runs_as_written_and_is_verified(copy: Path) -> None:
    folder = copy / call(copy, *command("python -m runner workload=")).splitlines()[-1]
    rows = pd.read_parquet(folder / "summary.parquet")
    assert set(rows["mode"]) == {"batched", "baseline"}
    expected = ["ok", True, 4 * 3 * 8, 4, "mlp"]
    assert rows[["status", "verified", "commands", "tokens", "workload"]].values.tolist() == [expected] * 2
    assert "128x1x64" in rows["shapes"][0]


def test_the_examples_are_listed(copy: Path) -> None:
    text = call(copy, "runner", "--help", "mode=pairs", "workload=mlp")
    assert re.search(r"^pairs +one strided-batch call for every two commands", text, re.M)
    assert re.search(r"^workload: .*\bmlp\b", text, re.M)
    assert re.search(r"^mode.each +commands a launch", text, re.M)
    assert re.search(r"^workload.widening +inner features per outer feature", text, re.M)
    matrix = call(copy, "runner.matrix")
    assert re.search(r"^\| pairs \| cpu, cuda \| yes \|", matrix, re.M)
    assert re.search(r"^\| mode \| device \|.* mlp \|", matrix, re.M)
    assert re.search(
        r"^\| `launch_ns_per_command` \| float64 \|", call(copy, *command("python -m runner.dataset --c")), re.M
    )


def test_an_option_beyond_its_limits_is_refused(copy: Path) -> None:
    for words, why in (
        ("mode=pairs mode.each=65", "from 1 to 64"),
        ("workload=mlp workload.widening=0", "from 1 to 64"),
    ):
        call_it = [sys.executable, "-m", "runner", *words.split()]
        done = subprocess.run(call_it, cwd=copy, env=environ_of(copy), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (2, f"error: {words.split()[1]}: must be {why}\n")


def test_older_files_read_as_null_in_the_new_column(copy: Path) -> None:
    committed = ROOT / "outputs/reference/h200/predecessor_tables/0"
    script = (
        "import sys; from pathlib import Path; from launchopt.recording.results import read_summaries;"
        "print({row['launch_ns_per_command'] for row in read_summaries([Path(sys.argv[1])])})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(committed)], cwd=copy, env=environ_of(copy), capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("{None}\n", "")


def test_the_examples_are_kept_to_our_own_rules(copy: Path) -> None:
    options = ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    for path in (*FILES, COLUMNS):
        call(copy, "ruff", "check", "--quiet", *options, str(copy / path))
        call(copy, "ruff", "format", "--quiet", "--check", *options, str(copy / path))


def test_files_that_the_text_names_are_there() -> None:
    paths = [named for named in re.findall(r"`([\w/]+/[\w.]+\.(?:py|sh|md))`", TEXT) if named not in FILES]
    assert paths
    for path in [*paths, *re.findall(r"\]\(([\w/.]+)\)", TEXT)]:
        assert (ROOT / path).exists(), path
