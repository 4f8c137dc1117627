"""Runs import neither pandas, which pyarrow would import with its first array, nor a compiler in the parent.

Nor do they make a named semaphore, which would outlive a SIGKILL: Python imports `multiprocessing.synchronize` for one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.processes.own_process import environ_of

TINY = "workload.m=16 workload.k=16 workload.commands=200 mode=batched repeats=1 device=cpu against=[]"
IMPORTED = "from pathlib import Path\nPath(__file__).with_name('imported').touch()\n__version__ = '0'\n"
MADE = "import pyarrow as pa; pa.array([1])"
WATCHED = """
import sys
from pathlib import Path

class Watch:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "multiprocessing.synchronize":
            Path(__file__).with_name("seen").touch()

sys.meta_path.insert(0, Watch)
"""
LOCK = "from multiprocessing import get_context; get_context('spawn').Lock()"
# Children end with os._exit, so only the parent writes.
AT_THE_END = """
import atexit, sys
from pathlib import Path
place = Path(__file__).with_name("parent")
atexit.register(lambda: "runner.app" in sys.modules and place.write_text(" ".join(sys.modules)))
"""
AFTERWARDS = """
import sys
from runner.worker.child import without_pandas
without_pandas()
import pyarrow as pa
table = pa.table({"name": ["a", "b"], "count": [1, 2]})
assert "pandas" not in sys.modules
assert table.to_pandas()["count"].sum() == 3
"""


def test_no_process_of_a_run_imports_pandas_or_makes_a_semaphore(tmp_path: Path) -> None:
    (tmp_path / "pandas.py").write_text(IMPORTED)
    (tmp_path / "sitecustomize.py").write_text(WATCHED)
    environ = environ_of()
    environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), environ["PYTHONPATH"]])
    marks = [tmp_path / "imported", tmp_path / "seen"]
    for program in (MADE, LOCK):
        subprocess.run([sys.executable, "-W", "ignore", "-c", program], env=environ, check=True)
    for mark in marks:
        mark.unlink()
    subprocess.run([sys.executable, "-m", "runner", *TINY.split(" ")], cwd=tmp_path, env=environ, check=True)
    assert list(tmp_path.glob("outputs/run/*/summary.parquet"))
    assert [mark for mark in marks if mark.exists()] == []


def test_the_parent_of_a_run_loads_no_compiler(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_THE_END)
    environ = environ_of()
    environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), environ["PYTHONPATH"]])
    subprocess.run([sys.executable, "-m", "runner", *TINY.split(" ")], cwd=tmp_path, env=environ, check=True)
    modules = (tmp_path / "parent").read_text().split()
    assert "runner.run.session" in modules
    assert not {"numba", "llvmlite", "launchopt.native"} & set(modules)


def test_who_wants_it_has_it_afterwards() -> None:
    subprocess.run([sys.executable, "-c", AFTERWARDS], env=environ_of(), check=True)
