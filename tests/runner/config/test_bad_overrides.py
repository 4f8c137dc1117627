"""Override sets that nobody should type: each is refused in a few words, at once, with nothing left, or it is planned.

A sample of all that follows is tried by default, all with --thorough. `python scripts/fuzz.py overrides` tries a
thousand sets and more.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from support.config.override_sets import WORDS, override_set, taken
from support.processes.own_process import environ_of
from support.thorough import some

from launchopt.errors import ConfigError
from runner import app
from runner.config.typed.words import check_words

SETS = 60  # here
BATCHES = 6


@pytest.mark.parametrize("batch", some(range(BATCHES)))
def test_generated_sets_are_refused_or_planned(batch: int, tmp_path: Path) -> None:
    faults = {}
    for number in range(batch, SETS, BATCHES):
        folder = tmp_path / str(number)
        folder.mkdir()
        words = override_set(Random(number))
        if fault := taken(words, folder).fault:
            faults[f"{number}: {words}"] = fault
    assert faults == {}


SIZES = [
    "workload.commands=1000000000000000",
    "workload.commands=2147483647 arrival=poisson arrival.rate_per_s=1e6",
    "arrival=bursty arrival.rate_per_s=1e6 arrival.burst_size=2147483647",
    "workload.replicas=2000000000 workload.m=1 workload.k=1 workload.shuffle=true",
    "queue.capacity=1099511627776",
    "queue.capacity=16777216 batching.max_batch=1000000000",
    "workload=decode workload.requests=2147483647",
    "workload=decode workload.tokens=2147483647",
    "workload=decode model=tiny workload.tokens=2147483647 sampling=greedy",
    "workload=decode model.layers=2147483647 ordering=none",
    "workload=decode workload.layers=2147483647 model.layers=1024",
    "workload=elementwise_chain workload.layers=2147483647 workload.hidden=1 workload.tokens=1",
    "workload=decode model=tiny scheduler=continuous scheduler.chunk_tokens=1 workload.prompt_tokens=2147483647",
    "workload=prefill workload.prompts=2147483647",
    "workload=prefill workload.prompts=2147483647 ordering=none",
    "workload=layer workload.requests=2147483647",
    "workload=layer workload.tokens=2147483647",
    "workload=decode arrival=replay arrival.path=endless.csv",
    "workload=decode arrival=replay arrival.path=endless.csv ordering=none",
    f"seed={'9' * 4000}",
    f"batching.timeout_us={'9' * 400}",
]
ENDLESS = "arrival_ms,prompt_tokens,output_tokens\n0,9223372036854775807,9223372036854775807\n1,1,1000000000000\n"


@pytest.mark.parametrize("typed", some(SIZES), ids=lambda typed: typed[:70])
def test_sizes_beyond_all_memory_are_refused_before_they_are_laid_out(typed: str, tmp_path: Path) -> None:
    (tmp_path / "endless.csv").write_text(ENDLESS)
    outcome = taken(["device=cpu", *typed.split(" ")], tmp_path)
    outcome.left.remove("endless.csv")
    assert outcome.fault is None
    assert outcome.exit_code == 2
    assert outcome.plans == []


@pytest.mark.parametrize("word", some(WORDS))
def test_words_that_abuse_the_grammar(word: str, tmp_path: Path) -> None:
    assert taken(["device=cpu", *word.split(" ")], tmp_path).fault is None


OURS = ["table={a:b}", "workload.commands=${oc.env:NO_SUCH_NAME}", "workload.commands=${workload.commands}"]


@pytest.mark.parametrize("typed", [*OURS, "workload=../model/tiny", "against=[${bogus}]"])
def test_what_composes_and_cannot_work_names_its_key(typed: str, tmp_path: Path) -> None:
    outcome = taken(["device=cpu", typed], tmp_path)
    assert outcome.fault is None
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith(f"error: {typed.partition('=')[0]}")


@pytest.mark.parametrize(
    "word",
    [
        "_target_=os.system",
        "+workload._target_=os.system",
        "table={_target_:os.system}",
        "+hydra.callbacks.x={_target_:os.system,command:id}",
        "hydra.launcher._target_=os.system",
        "--experimental-rerun=run.pickle",
        "--exp=run.pickle",
        f"model.name={'x' * 20_000}",
    ],
    ids=lambda word: word[:40],
)
def test_words_that_never_reach_hydra(word: str) -> None:
    with pytest.raises(ConfigError):
        check_words(["workload=decode", word])


@pytest.mark.parametrize("typed", ["seed=range(0,1000000000)", "seed=range(0,1000) workload.m=range(1,1000)"])
def test_sweeps_that_nobody_waits_for(typed: str, tmp_path: Path) -> None:
    outcome = taken(["-m", "device=cpu", *typed.split(" ")], tmp_path)
    assert outcome.fault is None
    assert outcome.exit_code == 2
    assert "over 100,000 jobs" in outcome.stderr


def test_a_mistake_of_this_program_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Hydra would make a warning of it and go on: nothing is run, no folder is made."""

    def broken(composed: object) -> object:
        return 1 // 0

    monkeypatch.setattr(app, "to_config", broken)
    outcome = taken(["device=cpu"], tmp_path)
    assert isinstance(outcome.exit_code, ZeroDivisionError)
    assert outcome.plans == []
    assert outcome.left == []


def test_a_name_with_a_secret_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    outcome = taken(["device=cpu", "workload.name=${oc.env:SECRET}", "workload.commands=0"], tmp_path)
    assert outcome.exit_code == 2
    assert "hunter2" not in outcome.stderr


PROCESSES = [
    "workload.commands=1000000000000000",
    "workload=null",
    "model.name=$(touch${IFS}pwned)",
    "'; touch pwned'",
    "table={_target_:os.system,command:id}",
    "hydra.run.dir=${bogus}",
    "workload=decode workload.tokens=2147483647",
    "workload.commands=${oc.env:NO_SUCH_NAME}",
    "seed=a=b=c",
    "--experimental-rerun=file",
]


@pytest.mark.parametrize("typed", some(PROCESSES))
def test_as_a_process(typed: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "runner", "device=cpu", *typed.split(" ")]
    done = subprocess.run(words, cwd=tmp_path, env=environ_of(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert 0 < len(done.stderr) < 2000
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []
