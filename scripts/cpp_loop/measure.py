"""Compiles cpp_loop.cpp with nvcc, runs it, and saves what it measured.

    python -m scripts.cpp_loop.measure --output outputs/new/gpu/cpp_loop
    python -m scripts.cpp_loop.measure --adopt outputs/reference/gpu/cpp_loop     put saved figures beside our tables

Writes cpp_loop.json and manifest.json. Reports show the figures of launchopt/analysis/tables/other_programs.json beside
ours; `--adopt` replaces those by saved ones. Exit code 2: no nvcc. 1: it did not compile, or the program failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from launchopt.analysis.tables import reference
from launchopt.errors import ConfigError, RunError
from launchopt.files import read_json, save_text
from launchopt.recording.environment import environment
from launchopt.recording.manifest import write_manifest
from runner.reading import CommandParser, exit_code

SOURCE = Path(__file__).with_name("cpp_loop.cpp")
SHOWN = Path(str(reference.__file__)).with_name(reference.FILE)
RESULT = "cpp_loop.json"
LIMIT_S = 540


def measure(folder: Path) -> None:
    """Compile, run, and write both files; RunError if one of these fails, ConfigError without nvcc."""
    nvcc = os.environ.get("NVCC") or shutil.which("nvcc")
    if nvcc is None:
        raise ConfigError("NVCC", "", "no nvcc: it comes with the CUDA toolkit; name it with NVCC=...")
    started = datetime.now(UTC).isoformat(timespec="seconds")
    with tempfile.TemporaryDirectory() as made:
        program = Path(made) / "cpp_loop"
        _ran(nvcc, "-O3", "-std=c++17", str(SOURCE), "-lcublasLt", "-o", str(program))
        text = _ran(str(program))
    found = json.loads(text)
    folder.mkdir(parents=True, exist_ok=True)
    save_text(folder / RESULT, text)
    about = {"started_utc": started, "device": {"kind": "cuda", "name": found["gpu"]}, "status": "ok"}
    write_manifest(folder, about | {"compiler": _ran(nvcc, "--version").split("\n")[-2], "environment": environment()})
    print(f"wrote {folder / RESULT}")


def _ran(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise RunError(f"{Path(command[0]).name}: {lines[0]}")
    return done.stdout


def adopted(shown: dict[str, Any], saved: dict[str, Any], source: str) -> dict[str, Any]:
    """Return the figures of other programs with those of the loop replaced by saved ones."""
    shapes = [
        each
        | {
            "loop_us": [min(each["loop_us"]), max(each["loop_us"])],
            "batch_us": {size: statistics.median(samples) for size, samples in each["batch_us"].items()},
        }
        for each in saved["shapes"]
    ]
    driver, library = int(saved["cuda_driver"]), int(saved["cublaslt"])
    software = f"CUDA driver {driver // 1000}.{driver % 1000 // 10}, cuBLASLt {library // 10000}.{library // 100 % 100}"
    program = shown["cpp_loop"] | {"gpu": saved["gpu"], "software": software, "source": source, "shapes": shapes}
    return shown | {"cpp_loop": program}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    options = _parser().parsed(argv)
    return exit_code(lambda: _main(options))


def _main(options: argparse.Namespace) -> int:
    if options.output:
        measure(options.output)
    if options.adopt:
        source = f"scripts/cpp_loop, {options.adopt.as_posix()}/{RESULT}"
        new = adopted(read_json(SHOWN), read_json(options.adopt / RESULT), source)
        save_text(SHOWN, json.dumps(new, indent=2) + "\n")
    return 0


def _parser() -> CommandParser:
    parser = CommandParser("cpp_loop", __doc__)
    parser.add_argument("--output", type=Path, metavar="DIR", help="measure, and save the figures here")
    parser.add_argument("--adopt", type=Path, metavar="DIR", help="show saved figures beside those of reports")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
