"""Checks one advice of `launchopt advise`: asks for it, and runs all stacks that it can choose from side by side.

    python -m scripts.advised MODEL.json --requests 16 --device cuda --budget-s 55 --repeats-s 20 --output DIR

In: a config.json. Out, below DIR, where each of these replaces that of an earlier start:

    first/         a short run of all stacks, in a few tokens of each request and a few layers. It also compiles
    advise/        the folder of `launchopt advise`, which finds all code compiled
    sweep/         one run of all stacks, without those that `first` shows to be over SLOW times as slow as the fastest
    answer.json    the advice, the seconds that it took, and the stacks that `sweep` leaves out

`sweep` has the size of advise's own trials, and its default batching. Its stacks take turns in random order, five times
or more, until the noise of all is low or --repeats-s is over. runner/report/advised.py compares them with the advice.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from hydra import compose

from launchopt.devices import find_device
from launchopt.devices.base import DeviceInfo
from launchopt.errors import RunError, VerificationError
from launchopt.files import save_json
from runner.advise.candidates import candidates
from runner.advise.halving import by_arm
from runner.advise.question import Question, of_model, settled_for
from runner.advise.trials import Trials
from runner.calling.caller import call
from runner.calling.words import words_of
from runner.config.loading import hydra_of
from runner.config.objects import to_config
from runner.config.schema import Config
from runner.reading import CommandParser, exit_code, positive, whole_number
from runner.report.advised import ANSWER, SLOW, SWEEP

ADVISE, FIRST = "advise", "first"
BASE = "engine"
FIRST_REPEATS = 2
# A loop on a GPU reads one copy of the weights. Few layers of a small model would be copied, to keep the cache cold.
FIRST_SIZE: dict[str, dict[str, object]] = {
    "cpu": {"workload.layers": 1, "workload.tokens": 4},
    "cuda": {"workload.layers": 4, "workload.tokens": 32, "workload.cache": "hot"},
}
FIRST_S = 300.0  # most seconds of the first run
GRACE_S = 20.0


def measure(options: argparse.Namespace) -> None:
    """Run the stacks, ask for the advice, and save the answer; LaunchoptError if one of them fails."""
    output: Path = options.output
    for name in (FIRST, ADVISE, SWEEP):
        shutil.rmtree(output / name, ignore_errors=True)
    (output / ANSWER).unlink(missing_ok=True)
    info, _ = find_device(options.device, 0)
    question = of_model(options.model, options.requests, options.device, None)
    asked = question.config()
    question = settled_for(question, asked, info)
    short = question.with_settings(FIRST_SIZE[info.kind])
    slow, broken = _first(short, _stacks(short, info), output / FIRST)
    began_s = time.monotonic()
    lines = _advice(options, output / ADVISE)
    took_s = time.monotonic() - began_s
    advised = _experiment(output / ADVISE)
    size = {"workload.layers": advised.workload.layers, "workload.tokens": advised.workload.tokens}
    question = question.with_settings(size)
    labels = _stacks(question, info)  # of the advised size: the number of layers decides about some
    left_out = (slow.keys() | broken.keys()) - {advised.mode.label}
    kept = [label for label in labels if label not in left_out]
    _sweep(question, kept, options.repeats_s, output / SWEEP)
    answer = {"advised": advised.mode.label, "requests": options.requests, "layers": asked.model.layers}
    answer |= {"budget_s": options.budget_s, "took_s": round(took_s, 1), "stacks": len(labels)}
    save_json(output / ANSWER, answer | {"slow": slow, "broken": broken, "lines": lines})


def _advice(options: argparse.Namespace, folder: Path) -> list[str]:
    """Run `launchopt advise` and return what it prints."""
    words = ["advise", "--model", str(options.model), "--requests", str(options.requests), "--device", options.device]
    words += ["--budget-s", f"{options.budget_s:g}", "--output", str(folder)]
    with subprocess.Popen([sys.executable, "-m", "runner", *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            said, _ = process.communicate()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            raise
    if process.returncode:
        raise RunError(f"launchopt advise ended with exit code {process.returncode}")
    return said.splitlines()


def _experiment(folder: Path) -> Config:
    """Return the config of the experiment that an advice wrote."""
    with hydra_of(config_dir=str(folder)):
        return to_config(compose("config", ["experiment=advice"]))


def _stacks(question: Question, info: DeviceInfo) -> list[str]:
    """Return the base and the other stacks that can run the question in its present size."""
    return [BASE, *(label for label in candidates(question.config(), info)[0] if label != BASE)]


def _first(question: Question, labels: Sequence[str], folder: Path) -> tuple[dict[str, float], dict[str, str]]:
    """Run all stacks for a moment. Return the slow ones with their factors, and the broken ones with the reasons.

    The better of two repeats counts, so that one disturbance leaves out no stack.
    """
    trials = Trials(folder, FIRST_S)
    arms = by_arm(trials.run(question, labels, FIRST_REPEATS))
    walls = {label: min(row["wall_ms"] for row in rows) for label, rows in arms.items()}
    if len(walls) < 2:
        raise RunError(f"fewer than two stacks ran in {FIRST_S:g} s: see {trials.folder}")
    fastest = min(walls.values())
    slow = {label: round(wall / fastest, 2) for label, wall in walls.items() if wall > SLOW * fastest}
    return slow, trials.dropped


def _sweep(question: Question, labels: Sequence[str], repeats_s: float, folder: Path) -> None:
    """Run stacks in turn. A stack whose outputs are wrong is in the results, and no best one."""
    settings = {**question.settings, "mode": list(labels), "repeats": "auto", "repeats_limit_s": repeats_s}
    with contextlib.suppress(VerificationError):
        call(words_of(settings, folder), is_quiet=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    options = _parser().parsed(argv)

    def work() -> int:
        measure(options)
        return 0

    return exit_code(work)


def _parser() -> CommandParser:
    parser = CommandParser("advised", __doc__)
    parser.add_argument("model", type=Path, metavar="MODEL.json", help="a config.json")
    parser.add_argument("--requests", type=whole_number(1), default=1, metavar="N", help="side by side; default 1")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="default: cuda")
    parser.add_argument("--budget-s", type=positive, default=120.0, metavar="S", help="of advise; default 120")
    parser.add_argument("--repeats-s", type=positive, default=60.0, metavar="S", help="of the sweep; default 60")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="where the results go")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
