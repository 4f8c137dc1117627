"""Random override sets, most of them invalid, and the outcome of the command line for them.

In: a generator of random numbers. Out: words. `taken` passes them to `runner.cli` as a process does, without the run
itself. The `Outcome` has the plans.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from unittest import mock

from launchopt.arrivals import arrivals
from launchopt.streams.model import Model
from launchopt.workloads import workloads
from runner import app, cli, sweep_jobs
from runner.config import groups
from runner.config.schema import Config
from support.processes.limits import TooMuchTime, limited
from support.results.mutations import raw_controls

CPU_S = 2.0  # limit of the processor seconds in which a set is planned or refused
MORE_BYTES = 4 << 30
MESSAGE_CHARACTERS = 401  # of one line, with its end: `launchopt.messages` cuts a longer one

# Settings of groups with one schema, and outside of groups. In other groups they depend on the option (OPTIONS).
KEYS = (
    *(f"model.{each.name}" for each in fields(Model)),
    *(f"device.{each.name}" for each in fields(groups.Device)),
    *(f"timing.{each.name}" for each in fields(groups.Timing)),
    *(f"queue.{each.name}" for each in fields(groups.Queue)),
    *(f"batching.{each.name}" for each in fields(groups.Batching)),
    *(f"sampling.{each.name}" for each in fields(groups.TokenSampling)),
    *(f"scheduler.{each.name}" for each in fields(groups.Scheduler)),
    *(f"slo.{each.name}" for each in fields(groups.Slo)),
    *(f"record.{each.name}" for each in fields(groups.Recording)),
    *(each.name for each in fields(Config)),
    *("mode.name", "mode.streams", "mode.cached", "bogus", "mode.bogus", "arrival.path", "workload.path"),
    *("hydra.run.dir", "hydra.sweep.dir", "hydra.job.name", "hydra.verbose", "hydra.mode"),
)
OPTIONS = {
    "workload": {kind.option() or "gemv_micro": kind for kind in workloads().values()},
    "arrival": arrivals(),
}
GROUPS = {
    "mode": ("baseline", "batched", "coalesced", "graph", "grouped", "pointer_array", "multistream", "nope"),
    "model": ("tiny", "small_1024", "qwen3_0_6b", "llama_3_70b", "../workload/decode"),
    "sampling": ("none", "greedy", "top_k", "top_p"),
    "scheduler": ("none", "continuous"),
    "timing": ("host", "events", "cupti"),
    "ordering": ("none", "per_request", "violated"),
    "table": ("gemv_micro", "decode", "strategies_layer"),
}
NUMBERS = (
    *("0", "-1", "1", "2", "7", "64", "1000000", "2147483647", "2147483648", "4294967296", "1099511627776"),
    *("9223372036854775807", "9223372036854775808", "1000000000000000", "-9223372036854775809", "9" * 400, "9" * 5000),
    *("0.5", "-0.0", "1e-320", "5e-324", "1e308", "1e400", "1e9", "nan", "-nan", "inf", "-inf", "NaN", "Infinity"),
    *("0x10", "1_000", "٣", "1e", "--1", "1.2.3"),
)
SIZES = ("1", "2", "3", "8", "63", "64", "257", "1000", "4096", "65536", "1000000", "30000000", "2147483647")
TEXTS = (
    *("", "''", '""', "null", "true", "False", "~", "???", "none", "auto", "all", "ä", "日本", "\U0001f600", "\ufeff"),
    *("\x1b[2J", "a\x00b", "a\nb", "\t", "\udcff", "\\", "\\\\", '"', "'", "(", ")", "%s", "{}", "#", "@", "<script>"),
    *("../../x", "/etc/passwd", "/dev/zero", "/dev/full", "/proc/self/mem", ".", "~", "-", "file", "a" * 5000),
    *("$(touch x)", "`touch x`", "; touch x", "| touch x", "&& touch x", "$HOME", "%(x)s", "{0.__class__}"),
    *("'$(touch x)'", "'; touch x'", '"<script>alert(1)</script>"', "'\x1b[2J'", "'../../x'"),
)
TREES = (
    *(
        "[]",
        "{}",
        "[1]",
        "[null]",
        "[[]]",
        "{a:1}",
        "{_target_:os.system}",
        "{_target_:os.system,command:id}",
        "[{a:b}]",
    ),
    *(
        "[baseline]",
        "[baseline,baseline]",
        "[all]",
        "[" * 50,
        "[" * 40 + "]" * 40,
        "{a:" * 40 + "1" + "}" * 40,
        "1,2,3",
    ),
    *(
        "range(1,5)",
        "choice(1,2)",
        "int(3)",
        "str(3)",
        "json_str({a:1})",
        "extend_list(x)",
        "glob(*)",
        "a=b=c",
        "=",
        "==",
    ),
)
INTERPOLATIONS = (
    *(
        "${oc.env:HOME}",
        "${oc.env:NO_SUCH_NAME}",
        "${seed}",
        "${workload}",
        "${workload.commands}",
        "${.name}",
        "${..seed}",
    ),
    *("${hydra:run.dir}", "${now:%Y}", "${bogus}", "${bogus:1}", "${", "${}", "$", "'${oc.env:HOME}'", "${${seed}}"),
    *("${oc.create:{a:1}}", "${oc.decode:'1'}", "${oc.select:seed}", "${oc.dict.keys:workload}", "${python_version:}"),
)
VALUES = (NUMBERS, TEXTS, TREES, INTERPOLATIONS)
WORDS = (
    *(
        "=",
        "==",
        "=1",
        "+=1",
        "~",
        "+",
        "++",
        "@",
        "x",
        "~workload",
        "~hydra",
        "~seed",
        "~batching.max_batch",
        "~mode=x",
    ),
    *("+mode.x=1", "++mode.x=1", "+bogus=1", "+_target_=os.system", "+workload._target_=os.system", "_target_=x"),
    *("+table._target_=os.system", "+hydra.callbacks.x._target_=os.system", "++table={_target_:os.system,command:id}"),
    *("+workload@foo=decode", "workload@=decode", "workload@hydra=decode", "hydra/launcher=x", "hydra/sweeper=x"),
    *("hydra.callbacks={}", "hydra.launcher=null", "workload[0]=1", "workload..commands=1", ".=1", "a.b.c=1", "ä=1"),
    *("--bogus", "--resolve", "--shell-completion", "--experimental-rerun=x", "--exp=x", "--config-name=../x"),
    *("--config-name=\x00", "--config-dir=file", "--config-dir=nope", "--package=x", "--info=x", "-z", "--run=x"),
    *("workload=null", "mode=[]", "model={}", "device=null", "arrival=[closed,poisson]", "--cfg=x", "seed=1 seed=2"),
)


def override_set(generator: random.Random) -> list[str]:
    """Return valid choices of groups, and one to three words of any kind."""
    words, keys = [], list(KEYS)
    for group, options in OPTIONS.items():
        option = generator.choice(tuple(options)) if generator.random() < 0.7 else next(iter(options))
        words.append(f"{group}={option}")
        keys += [f"{group}.{each.name}" for each in fields(options[option])] * 5
        words += ["arrival.rate_per_s=1e4"] * (option in ("constant", "poisson", "bursty"))
    words += [f"{group}={generator.choice(options)}" for group, options in GROUPS.items() if generator.random() < 0.1]
    if generator.random() < 0.4:  # well-formed words only, which at most the plan can refuse
        sizes = [
            key for key in keys if key.partition(".")[0] in ("workload", "model", "queue", "batching", "scheduler")
        ]
        chosen = generator.sample(sizes, generator.randint(1, 4))
        return ["device=cpu", *words, *(f"{key}={generator.choice(SIZES)}" for key in chosen if "name" not in key)]
    for _ in range(generator.randint(1, 3)):
        if generator.random() < 0.15:
            words.append(generator.choice(WORDS))
            continue
        prefix = generator.choice(("", "+", "++", "~")) if generator.random() < 0.2 else ""
        values = NUMBERS if generator.random() < 0.5 else generator.choice(VALUES)
        words.append(f"{prefix}{generator.choice(keys)}={generator.choice(values)}")
    return ["device=cpu", *words]


@dataclass(frozen=True)
class Outcome:
    """The result of some words: exit code, output, plans, and files left. `fault`: a broken rule, or None."""

    words: list[str]
    exit_code: object
    stdout: str
    stderr: str
    plans: list[Any] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def fault(self) -> str | None:
        """Return the rule that was broken, or None."""
        if isinstance(self.exit_code, BaseException):
            return "".join(traceback.format_exception(self.exit_code))
        if "Traceback" in self.stderr:
            return self.stderr
        if raw := raw_controls(self.stdout + self.stderr):
            return f"raw control characters: {raw[:100]!r}"
        if self.exit_code == 0:
            return None if self.plans or self.stdout else "exit 0, and nothing was done"
        if self.exit_code not in (1, 2):
            return f"exit code {self.exit_code!r}"
        if self.plans or self.left:
            return f"refused, but planned {len(self.plans)} runs and left {self.left}"
        if not self.stderr.strip() or len(self.stderr) > MESSAGE_CHARACTERS:
            return f"{len(self.stderr)} characters of message: {self.stderr[:500]!r}"
        return None


def taken(words: list[str], folder: Path) -> Outcome:
    """Pass `words` to the command line in the empty `folder`, and leave out the run itself."""
    out, stderr, plans = io.StringIO(), io.StringIO(), []

    def run(plan: Any, folder: Path, overrides: list[str]) -> None:
        plans.append(plan)

    def run_job(plan: Any, sweep: Any, job: Any, folder: Path, fail: Any) -> None:
        plans.append(plan)
        job.ended("ok")

    code = _within(folder, lambda: _exit_code(words, out, stderr, run, run_job))
    left = sorted(path.name for path in folder.rglob("*"))
    return Outcome(words, code, out.getvalue(), stderr.getvalue(), plans, left)


def _within(folder: Path, act: Callable[[], object]) -> object:
    with contextlib.chdir(folder), mock.patch("sys.argv", ["runner"]), mock.patch.dict(os.environ):
        return act()


def _exit_code(
    words: list[str], out: io.StringIO, stderr: io.StringIO, run: Callable[..., None], run_job: Callable[..., None]
) -> object:
    """Return the exit code, or the exception that would have ended the process."""
    try:
        with (
            mock.patch.object(app, "_run", run),
            mock.patch.object(sweep_jobs, "_run_job", run_job),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(stderr),
            limited(CPU_S, MORE_BYTES),
        ):
            return cli.run(words)
    except SystemExit as ended:
        return ended.code
    except (Exception, TooMuchTime) as error:
        return error
