"""Packages with plugins, as pip leaves them: a module and its metadata. And a process of its own that sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.paths import ROOT, TESTS

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
ANSWERING = """
import contextlib, io, json, sys
from runner import commands, ending
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = ending.outcome(lambda: commands.dispatch(words))
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def put_metadata(site: Path, name: str, version: str, points: str = "", requires: str = "") -> None:
    """Write the metadata of a package into `site`. points: lines `GROUP NAME = MODULE:OBJECT`."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: made for a test\n"
    (folder / "METADATA").write_text(about + (f"Requires-Dist: {requires}\n" if requires else ""))
    lines = [line.strip().partition(" ") for line in points.strip().splitlines()]
    text = "".join(f"[launchopt.{group}s]\n{entry}\n" for group, _, entry in lines)
    (folder / "entry_points.txt").write_text(text)


def put_launchopt(site: Path) -> None:
    """Write metadata of this checkout into `site`: the tests also run where an older one is installed."""
    put_metadata(site, "launchopt", VERSION)


def seeing(site: Path) -> dict[str, str]:
    """Return an environment in which packages of `site` are installed."""
    paths = [str(ROOT), str(TESTS), str(site), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def answers(site: Path, calls: Mapping[str, Sequence[str]], folder: Path) -> dict[str, tuple[int, str, str]]:
    """Return exit code, output and errors of calls of `launchopt`, all made by one process in `folder`."""
    call = [sys.executable, "-c", ANSWERING, json.dumps(list(map(list, calls.values())))]
    done = subprocess.run(call, cwd=folder, env=seeing(site), capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {name: (code, out, err) for name, (code, out, err) in zip(calls, found, strict=True)}
