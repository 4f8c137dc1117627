"""Measures the reference results again, in parts of a few minutes each; none twice by one revision.

    python scripts/reference.py --list                        the parts, and what is left of each
    python scripts/reference.py --output outputs/new          every part that this machine can run
    python scripts/reference.py --only gpu/strategies/0       one part; a prefix such as gpu/strategies names several

The code must be a revision without uncommitted changes. A copy without a history needs LAUNCHOPT_GIT_REVISION. Each
manifest gets an entry `part`: the command, and machine, driver and clocks before and after it. The state of all parts
is in `parts.json` of the output folder. Compare figures of one part only, since each part has one machine.

Exit code 0: every chosen part is done. 1: a part failed or ran out of time, and its last line is shown; the next start
tries it again. 2: bad input, or code with uncommitted changes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from launchopt.devices import find_device
from launchopt.devices.cpu.info import cpu_info
from launchopt.errors import ConfigError, explained, nearest
from launchopt.files import JsonObject, read_json, save_json
from launchopt.recording.environment import environment
from launchopt.recording.manifest import read_manifest, write_manifest
from runner.reading import CommandParser, exit_code
from runner.report.provenance import origin

ROOT = Path(__file__).parents[1]
STATES = "parts.json"
GRACE_S = 20  # after Ctrl-C a run ends its repeat and saves it
ASKED = ("name", "driver_version", "clocks.sm", "clocks.mem", "temperature.gpu", "clocks_throttle_reasons.active")
STRATEGIES = (
    *("gemv_micro", "gemv_256", "decode_1", "decode_16", "decode_64"),
    *("prefill", "layer", "elementwise_chain", "linear_epilogue"),
)
RESIDENT = ("gemv_256", "gemv_micro", "decode_1", "decode_16", "layer", "llama_1", "llama_16")
GPU_BENCHES = ("resident", "stream", "megakernel", "copies", "tracing", "modes", "dispatch", "pipeline")
CPU_BENCHES = ("ring", "batcher", "recorder", "posting", "pipeline")
TABLES = [(table, dtype) for table in ("gemv_micro", "decode", "prefill") for dtype in ("fp32", "fp16")]


class Part(NamedTuple):
    """One command, the folder of its results, the device that it needs, and the most minutes it may take."""

    folder: str
    device: str  # cuda or cpu
    minutes: float
    words: tuple[str, ...]  # after `python -m`

    @property
    def command(self) -> str:
        """The command without the folder of its results."""
        return " ".join(("python -m", *self.words))


def _run(folder: str, minutes: float, *words: str, device: str = "cuda") -> Part:
    return Part(folder, device, minutes, ("runner", *words, f"device={device}"))


def _bench(folder: str, device: str, suite: str) -> Part:
    return Part(f"{folder}/{suite}", device, 8, ("runner.bench", suite, "--device", device))


PARTS = (
    *(_run(f"gpu/strategies/{i}", 10, f"table=strategies_{name}", "repeats=5") for i, name in enumerate(STRATEGIES)),
    *(
        _run(f"gpu/gpu_kernel_batcher/{i}", 10, f"table={table}", f"workload.dtype={dtype}", "repeats=5")
        for i, (table, dtype) in enumerate(TABLES)
    ),
    *(
        _run(f"gpu/decode_in_order/{dtype}_{n}", 5, "experiment=decode_in_order", *more, "repeats=5")
        for dtype in ("fp32", "fp16")
        for n in (1, 4, 16, 64)
        for more in [(f"workload.requests={n}", f"workload.dtype={dtype}")]
    ),
    *(_run(f"gpu/resident/{i}", 8, f"table=resident_{name}", "repeats=5") for i, name in enumerate(RESIDENT)),
    *(
        _run(f"gpu/qkv/{table}_{model}", 5, f"table=qkv_{table}", f"model={model}", "repeats=5")
        for table in ("decode_1", "decode_16", "prefill")
        for model in ("folovllm", "qwen3_0_6b", "llama_3_2_1b", "llama_3_8b")
    ),
    *(_bench("gpu/bench", "cuda", suite) for suite in GPU_BENCHES),
    Part("gpu/cpp_loop", "cuda", 9, ("scripts.cpp_loop.measure",)),
    *(_bench("cpu/bench", "cpu", suite) for suite in CPU_BENCHES),
    _run("cpu/quick", 2, "experiment=quick", device="cpu"),
)


def measure(parts: Sequence[Part], output: Path, revision: object, *, runs_gpu: bool) -> int:
    """Measure what is left of `parts`; return the number of parts that failed."""
    failed = 0
    for part in parts:
        if _state(part, output, revision)["state"] == "done":
            print(f"{part.folder}: done before")
            continue
        if part.device == "cuda" and not runs_gpu:
            print(f"{part.folder}: skipped, needs a GPU")
            continue
        print(f"{part.folder}: {part.command}", flush=True)
        found = _measured(part, output / part.folder) | {"revision": revision}
        save_json(output / STATES, read_states(output) | {part.folder: found})
        print(f"{part.folder}: {found['state']} after {found['seconds']:.0f} s{_why(found)}", flush=True)
        failed += found["state"] != "done"
    return failed


def read_states(output: Path) -> JsonObject:
    """Return the state of every part that was tried."""
    path = output / STATES
    return dict(read_json(path)) if path.is_file() else {}


def _state(part: Part, output: Path, revision: object) -> JsonObject:
    """Return the saved state of a part. Done: by this command and this revision, and its manifest is there."""
    found: JsonObject = read_states(output).get(part.folder, {"state": "not tried"})
    is_there = any((output / part.folder).rglob("manifest.json"))
    is_same = (found.get("command"), found.get("revision")) == (part.command, revision)
    return {"state": "not tried"} if found["state"] == "done" and not (is_same and is_there) else found


def _why(found: Mapping[str, object]) -> str:
    return f": {found['why']}" if found.get("why") else ""


def _measured(part: Part, folder: Path) -> JsonObject:
    """Run a part, add its entry to the manifests, and return its state."""
    before, started = machine(part.device), time.monotonic()
    code, last = _ended(part, folder)
    about: JsonObject = {"command": part.command, "seconds": round(time.monotonic() - started, 1), "exit_code": code}
    for path in sorted(folder.rglob("manifest.json")):
        manifest = read_manifest(path.parent)
        write_manifest(path.parent, manifest | {"part": about | {"before": before, "after": machine(part.device)}})
    why = _fault(folder) if code == 0 else last
    state = "done" if not why else "out of time" if code is None else "failed"
    return about | {"state": state, "why": why}


def _ended(part: Part, folder: Path) -> tuple[int | None, str]:
    """Return the exit code and the last line on standard error; None for a part that ran out of time."""
    is_run = part.words[0] == "runner"
    where = (f"hydra.run.dir={folder}", f"hydra.sweep.dir={folder}") if is_run else ("--output", str(folder))
    command = [sys.executable, "-m", *part.words, *where]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            _, text = process.communicate(timeout=60 * part.minutes)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
            return None, f"longer than {part.minutes:g} minutes"
    lines = text.strip().splitlines()
    return code, (lines[-1] if lines else f"exit code {code}") if code else ""


def _fault(folder: Path) -> str:
    """Return why results of a part that ended well cannot be committed, or nothing."""
    paths = sorted(folder.rglob("manifest.json"))
    if not paths:
        return "no manifest"
    found = [origin(path) for path in paths]
    if any(each.revision is None for each in found):
        return "no revision in the manifest"
    return "the code was changed meanwhile" if any(each.dirty for each in found) else ""


def machine(device: str) -> JsonObject:
    """Return the processor, or the GPUs with driver and clocks as nvidia-smi prints them."""
    about: JsonObject = {"processor": cpu_info().name}
    if device == "cuda" and shutil.which("nvidia-smi"):
        command = ["nvidia-smi", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader"]
        lines = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout.splitlines()
        about["gpus"] = [dict(zip(ASKED, map(str.strip, line.split(",")), strict=False)) for line in lines]
    return about


def chosen(parts: Sequence[Part], wanted: Sequence[str]) -> list[Part]:
    """Return the parts whose folder is, or is below, one that is wanted; ConfigError for a name that fits none."""
    for name in wanted:
        if not any(_is_below(part, name) for part in parts):
            folders = [part.folder for part in parts]
            raise ConfigError("--only", name, explained("no such part", "see --list", nearest(name, folders)))
    return [part for part in parts if not wanted or any(_is_below(part, name) for name in wanted)]


def _is_below(part: Part, name: str) -> bool:
    return f"{part.folder}/".startswith(f"{name.rstrip('/')}/")


def list_parts(parts: Sequence[Part], output: Path, revision: object) -> None:
    """Print every part: state, device, most minutes, folder, command."""
    for part in parts:
        state = _state(part, output, revision)
        print(
            f"{state['state']:<11} {part.device:<4} {part.minutes:>2g} min  {part.folder}: {part.command}{_why(state)}"
        )


def main(argv: Sequence[str] | None = None, parts: Sequence[Part] = PARTS) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    options = _parser().parsed(argv, needs_words=False)
    return exit_code(lambda: _main(options, parts))


def _main(options: argparse.Namespace, parts: Sequence[Part]) -> int:
    wanted, about = chosen(parts, options.only), environment()
    revision, is_dirty = about.get("git_revision"), about.get("git_dirty")
    if options.list:
        list_parts(wanted, options.output, revision)
        return 0
    if revision is None or is_dirty:
        why = "has uncommitted changes" if is_dirty else "has no history, and LAUNCHOPT_GIT_REVISION is not set"
        raise ConfigError("code", str(ROOT), f"{why}; results must name a clean revision, so commit first")
    runs_gpu = find_device("auto", 0)[0].kind == "cuda"
    return 1 if measure(wanted, options.output.absolute(), revision, runs_gpu=runs_gpu) else 0


def _parser() -> CommandParser:
    parser = CommandParser("reference", __doc__)
    parser.add_argument("--list", action="store_true", help="print the parts and their state")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="folders of parts, or of groups of parts")
    parser.add_argument("--output", type=Path, default=Path("outputs/new"), metavar="DIR", help="default: outputs/new")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
