"""CONTRIBUTING.md is part of the product: its mode, workload and column are found by being there, and work."""

from __future__ import annotations

import fcntl
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent

import pandas as pd
import pytest
from support.paths import ROOT
from support.processes.ended_runs import Keeper, Ran
from support.processes.own_process import environ_of

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
COLUMNS = "launchopt/recording/summary_columns.py"
END_OF_COLUMNS = "\n)\n\nSUMMARY = schema("
# The whole files that the text shows, by their path.
FILES = dict(re.findall(r"`(launchopt/\w+/\w+\.py)`[^\n]*\n\n```python\n(\"\"\".*?)```", TEXT, re.S))
MODE, WORKLOAD = "launchopt/modes/pairs.py", "launchopt/workloads/mlp.py"
READERS = """
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from launchopt.recording.results import read_summaries
from runner import dataset, matrix
matrix.main([])
dataset.main(["--columns"])
print({row["launch_ns_per_command"] for row in read_summaries([Path(sys.argv[1])])})
"""


def entry() -> str:
    """The column that the text shows, as it stands in the list."""
    found = re.search(r"```python\n(column\(\n.*?)```", TEXT, re.S)
    assert found
    return indent(found[1].rstrip().removesuffix(",") + ",", "    ")


def words_of(start: str) -> str:
    """Return the words after the module's name, of the text's one command that begins with `start`."""
    (line,) = [line for line in TEXT.splitlines() if line.startswith(start)]
    return " ".join(shlex.split(line)[3:])


@pytest.fixture(scope="module")
def copy(pytestconfig: pytest.Config) -> Iterator[Path]:
    """The packages, with the examples put into them and nothing else changed.

    They always lie in the same folder of pytest's cache, with the files' own times, so that their machine code is
    found again. Of several processes with tests of this module one has it at a time.
    """
    assert pytestconfig.cache
    place = pytestconfig.cache.mkdir("contributing")
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield with_examples(place / "copy")


def with_examples(folder: Path) -> Path:
    """Make the copy anew, and return its folder."""
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
    """Return the standard output of an interpreter that imports from `copy`."""
    call = [sys.executable, *arguments]
    done = subprocess.run(call, cwd=copy, env=environ_of(copy), capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def runner(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Ran]]:
    """Call `python -m runner` of the copy with these words. One process answers all calls."""
    keeper = Keeper(tmp_path_factory.mktemp("contributing") / "kept.stderr", copy)
    yield lambda words: keeper.run(words, copy)
    keeper.close()


def results_of(run: Ran) -> Path:
    """Return the folder of the results of a run that ended well."""
    assert (run.exit_code, run.stderr) == (0, "")
    return run.folder / run.stdout.splitlines()[-1]


def test_the_text_shows_a_mode_and_a_workload() -> None:
    assert set(FILES) == {MODE, WORKLOAD}
    assert all(len(source.splitlines()) <= 60 for source in FILES.values())


def test_the_mode_runs_as_written_with_its_option_and_the_column_is_filled(runner: Callable[[str], Ran]) -> None:
    folder = results_of(runner(words_of("python -m runner mode=")))
    every = pd.read_parquet(folder / "summary.parquet")
    assert every["mode"].value_counts().to_dict() == {"pairs": 5, "baseline": 5}
    rows = every[every["repeat"] == 0].set_index("mode")
    assert rows[["status", "verified", "commands"]].values.tolist() == [["ok", True, 64]] * 2
    assert rows.loc["baseline", "launch_calls"] == 64
    launches = pd.read_parquet(folder / "launches.parquet")
    sizes = launches[(launches["mode"] == "pairs") & (launches["repeat"] == 0)]["batch_size"]
    assert sizes.max() == 4
    assert (len(sizes), sizes.sum()) == (rows.loc["pairs", "launch_calls"], 64)
    spent = rows["host_submit_ns_per_launch"] * rows["launch_calls"] / rows["commands"]
    assert rows["launch_ns_per_command"].tolist() == spent.tolist()


def test_the_workload_runs_as_written_and_is_verified(runner: Callable[[str], Ran]) -> None:
    folder = results_of(runner(words_of("python -m runner workload=")))
    rows = pd.read_parquet(folder / "summary.parquet")
    assert rows["mode"].value_counts().to_dict() == {"batched": 5, "baseline": 5}
    expected = ["ok", True, 4 * 3 * 8, 4, "mlp"]
    assert rows[["status", "verified", "commands", "tokens", "workload"]].values.tolist() == [expected] * 10
    assert "128x1x64" in rows["shapes"][0]


def test_the_help_lists_the_examples(runner: Callable[[str], Ran]) -> None:
    text = runner("--help mode=pairs workload=mlp").stdout
    assert re.search(r"^  pairs +one strided-batch call for every two commands", text, re.M)
    assert re.search(r"^workload: [^=]*\bmlp\b", text, re.M)
    assert re.search(r"^  mode.each=\S+ +commands a launch", text, re.M)
    assert re.search(r"^  workload.widening=\S+ +inner features per outer feature", text, re.M)


def test_an_option_beyond_its_limits_is_refused(runner: Callable[[str], Ran]) -> None:
    for words, why in (
        ("mode=pairs mode.each=65", "from 1 to 64"),
        ("workload=mlp workload.widening=0", "from 1 to 64"),
    ):
        refused = runner(words)
        assert (refused.exit_code, refused.stderr) == (2, f"error: {words.split()[1]}: out of range; allowed: {why}\n")


def test_the_matrix_and_the_page_of_columns_list_the_examples_and_older_files_read_as_null(copy: Path) -> None:
    assert words_of("python -m runner dataset") == "dataset --columns"
    committed = ROOT / "outputs/reference/gpu/gpu_kernel_batcher/gemv_micro_fp32"
    text = call(copy, "-c", READERS, str(committed))
    assert re.search(r"^\| pairs \| cpu, cuda \| yes \|", text, re.M)
    assert re.search(r"^\| mode \| device \|.* mlp \|", text, re.M)
    assert re.search(r"^\| `launch_ns_per_command` \| float64 \|", text, re.M)
    assert text.endswith("\n{None}\n")


def test_the_examples_are_kept_to_our_own_rules(copy: Path) -> None:
    options = ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    paths = [str(copy / path) for path in (*FILES, COLUMNS)]
    call(copy, "-m", "ruff", "check", "--quiet", *options, *paths)
    call(copy, "-m", "ruff", "format", "--quiet", "--check", *options, *paths)


def test_files_that_the_text_names_are_there() -> None:
    paths = [named for named in re.findall(r"`([\w/]+/[\w.]+\.(?:py|sh|md))`", TEXT) if named not in FILES]
    assert paths
    for path in [*paths, *re.findall(r"\]\(([\w/.]+)\)", TEXT)]:
        assert (ROOT / path).exists(), path
