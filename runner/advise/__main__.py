"""Which stack to switch on for your model, trace or list of GEMMs, with which batching, and what you gain.

    launchopt advise --model config.json --requests 16 --slo-tpot-ms 10
    launchopt advise --trace trace.json.gz
    launchopt advise --list gemms.csv --budget-s 30
    launchopt advise --model config.json --trace conversation_trace.jsonl

In: a config.json (Hugging Face), a PyTorch profiler trace, or a list of GEMMs (docs/models-and-traces.md). Short trials
of every stack that runs here take turns; the better half goes on, until the choice is decided or the budget ends. Out:
five lines, and in the folder of --output a YAML to run the advised stack again, a page to show, and all measurements.
A Mooncake trace of requests beside a model adds a line: what prefix caching would save of its prompts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from launchopt.errors import ArenaMemoryError, ConfigError, one_line
from launchopt.files import is_there, reason
from launchopt.weights.packing import BITS
from runner.ending import end
from runner.reading import CommandParser, exit_code, positive, whole_number

if TYPE_CHECKING:
    from runner.advise.question import Question

GPU_BUDGET_S, CPU_BUDGET_S = 120.0, 60.0
LEAST_BUDGET_S = 10.0
WORK = ("model", "trace", "list")  # options that name it
MOST_REQUESTS = 1024
RESERVE_S = 6.0  # of the budget, for the page, and more on a busy machine:
PAGE_LOADS = 4.0  # the page takes at most this many times as long as loading this program


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    parser = _parser()
    options = parser.parsed(argv)
    given = [name for name in WORK if getattr(options, name)]
    if not given:
        parser.error(f"one of the arguments {' '.join(f'--{name}' for name in WORK)} is required")
    if len(given) > 1 and given != ["model", "trace"]:
        parser.error(f"argument --{given[1]}: not allowed with argument --{given[0]}")
    return exit_code(lambda: _advise(options))


def _advise(options: argparse.Namespace) -> int:
    from launchopt.devices import find_device
    from runner.advise.answer import lines_of
    from runner.advise.candidates import candidates, counts, why_not
    from runner.advise.compiling import compile_loops
    from runner.advise.floors import floors_of
    from runner.advise.prefixes import prefixes_line
    from runner.advise.question import base_of, settled_for
    from runner.advise.saving import save
    from runner.advise.search import search
    from runner.advise.trials import Trials, require_memory
    from runner.plan.plan import left_out
    from runner.plan.streams import model_notices

    loading_s = _running_s()
    question = _question(options)
    config = question.config()
    info, why = find_device(config.device.kind.value, config.device.index)
    question = settled_for(question, config, info)
    prefixes = [prefixes_line(options.trace)] if options.model and options.trace else []
    budget_s = _budget_s(options.budget_s, info.kind)
    note = "" if info.kind == "cuda" else "; advice for this CPU, which says nothing about a GPU"
    print(f"device: {info.kind} ({info.name}), {why}{note}; budget {budget_s:g} s", file=sys.stderr)
    for notice in model_notices(question.config()) if options.model else ():
        print(one_line(notice, 1000), file=sys.stderr)
    folder = options.output or Path("outputs/advise") / datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
    if "${" in str(folder):
        raise ConfigError("--output", folder, "has ${ in its name, which Hydra reads: name another folder")
    if is_there(folder):
        raise ConfigError("--output", folder, "is there already: name a new folder")
    base = base_of(question, info.kind)
    with _own_options_named(question), _removed_without_results(folder):
        _made(folder)
        require_memory(question, [base])
        calibration = floors_of(info, folder, budget_s)
        reserve_s = max(RESERVE_S, min(PAGE_LOADS * loading_s, budget_s / 5))
        compiling_s = compile_loops(question, info.kind, folder)
        spent_s = _running_s() - compiling_s + reserve_s
        trials = Trials(folder, budget_s - spent_s, spent_s=spent_s)
        layers = config.model.layers if question.requests else None
        found = search(question, lambda sized: candidates(sized.config(), info)[0], base, layers, trials)
    able, refused = candidates(found.question.config(), info)
    print(one_line(counts(able, refused), 1000), file=sys.stderr)
    if trials.dropped:
        print(one_line(left_out(trials.dropped), 1000), file=sys.stderr)
    answer = [*lines_of(found, calibration, why_not(refused)), *prefixes]
    print("\n".join(answer), flush=True)  # whatever becomes of the files
    print("\n".join(save(found, answer, folder)))
    return 0


def _budget_s(asked_s: float | None, kind: str) -> float:
    """Return the seconds of the search on a kind of device; ConfigError if they are too few."""
    budget_s = asked_s or (GPU_BUDGET_S if kind == "cuda" else CPU_BUDGET_S)
    if budget_s < LEAST_BUDGET_S:
        why = f"must be {LEAST_BUDGET_S:g} or more: a run takes long to start"
        raise ConfigError("--budget-s", f"{budget_s:g}", why)
    return budget_s


def _question(options: argparse.Namespace) -> Question:
    """Return what the options ask; ConfigError for options that do not go together."""
    from runner.advise.prefixes import has_requests
    from runner.advise.question import of_file, of_model, p99, tpot

    if options.trace and options.model and not has_requests(options.trace):
        why = "only a Mooncake trace of requests, with hash_ids, goes with --model: leave one of them out"
        raise ConfigError("--trace", options.trace, why)
    if options.trace and not options.model and has_requests(options.trace):
        why = "holds requests, not launches: add --model config.json, or type launchopt prefixes TRACE"
        raise ConfigError("--trace", options.trace, why)
    limit = tpot(options.slo_tpot_ms) if options.slo_tpot_ms else None
    limit = p99(options.slo_p99_ms) if options.slo_p99_ms else limit
    if options.slo_tpot_ms and not options.model:
        raise ConfigError("--slo-tpot-ms", f"{options.slo_tpot_ms:g}", "only a model has tokens: use --slo-p99-ms")
    if options.requests and not options.model:
        raise ConfigError("--requests", options.requests, "only a model has requests: leave it out")
    if options.weights and not options.model:
        raise ConfigError("--weights", options.weights, "only weights of a model are quantised: leave it out")
    if not options.model:
        return of_file("trace" if options.trace else "list", options.trace or options.list, options.device, limit)
    question = of_model(options.model, options.requests or 1, options.device, limit)
    question = question.with_settings({"workload.weights": options.weights}) if options.weights else question
    if options.slo_tpot_ms and not question.requests:
        why = "GEMMs without order, and experts of a layer, have no tokens: use --slo-p99-ms"
        raise ConfigError("--slo-tpot-ms", f"{options.slo_tpot_ms:g}", why)
    return question


@contextlib.contextmanager
def _own_options_named(question: Question) -> Iterator[None]:
    """Let an error name options of advise: those that ask for less memory, or for weights of other formats."""
    try:
        yield
    except ConfigError as error:
        if error.key not in ("workload.weights", "workload.scales"):
            raise
        others = "use fp8 or int8, or leave it out" if error.key == "workload.scales" else "leave it out"
        why = f"{error.allowed.partition(': use')[0]}: {others}"
        raise ConfigError("--weights", question.settings.get("workload.weights"), why) from None
    except ArenaMemoryError as error:
        smaller = "a smaller model, or fewer --requests" if "model" in question.settings else "a smaller file"
        if question.settings.get("workload") == "trace":
            path = shlex.quote(str(question.settings["workload.path"]))
            smaller += f", or run its first N: launchopt run workload=trace workload.path={path} workload.commands=N"
        if "model" in question.settings and "workload.weights" not in question.settings:
            smaller += ", or quantised --weights"
        raise ArenaMemoryError(f"{str(error).rpartition(': ')[0]}: give {smaller}") from None


@contextlib.contextmanager
def _removed_without_results(folder: Path) -> Iterator[None]:
    """Remove the folder if the block ends with an error before a trial has ended; also folders made for it.

    A folder that has trials is named.
    """
    made = [each for each in folder.parents if not each.exists()]
    try:
        yield
    except BaseException:
        if not any(folder.rglob("summary.parquet")):
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # it was not made, or is not empty
                for each in made:
                    each.rmdir()
        else:
            print(f"no advice; the trials that ended are in {one_line(folder)}", file=sys.stderr)
        raise


def _made(folder: Path) -> None:
    """Make the folder before anything is compiled for it; ConfigError if it cannot be made."""
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        why = f"cannot be written to: {reason(error)}; choose another output folder"
        raise ConfigError("--output", folder, why) from None


def _running_s() -> float:
    """Return the seconds since this process began: loading counts, too."""
    began = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]  # field 22: ticks since the boot
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(began) / os.sysconf("SC_CLK_TCK")


def _parser() -> CommandParser:
    parser = CommandParser("advise", __doc__)
    parser.add_argument(
        "--model",
        type=Path,
        metavar="CONFIG.json",
        help="a model's config.json, or its folder; or a name such as llama_3_8b",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="TRACE",
        help="a PyTorch profiler trace, plain or gzip; beside --model a Mooncake trace of its requests",
    )
    parser.add_argument("--list", type=Path, metavar="GEMMS", help="a list of GEMMs, CSV or JSON")
    parser.add_argument(
        "--requests", type=whole_number(1, MOST_REQUESTS), help="requests of a model side by side; default 1"
    )
    formats = [str(each) for each in BITS]
    parser.add_argument("--weights", choices=formats, help="quantised weights of a model; default: not quantised")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--slo-tpot-ms", type=positive, metavar="MS", help="most p99 time per output token")
    limit.add_argument(
        "--slo-p99-ms", type=positive, metavar="MS", help="most p99 latency of a command, with its wait behind others"
    )
    parser.add_argument(
        "--budget-s",
        type=positive,
        metavar="S",
        help="seconds, without compiling once; default 120 on a GPU, 60 on a CPU",
    )
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: the GPU if there is one"
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="a new folder; default: below outputs/advise")
    return parser


if __name__ == "__main__":
    end(main)
