"""Completion: candidates for the last word, and the scripts of the shells."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from runner.help import completion


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["verd"], ["verdict"]),
        (["run", "timing="], ["timing=cupti", "timing=events", "timing=host", "timing=torch"]),
        (["run", "workload.dt"], ["workload.dtype="]),
        (["run", "workload.dtype=f"], ["workload.dtype=fp16", "workload.dtype=fp32"]),
        (["run", "workload.scales=c"], ["workload.scales=channel"]),
        (["run", "workload.weights=f"], ["workload.weights=fp8"]),
        (["device=c"], ["device=cpu", "device=cuda"]),
        (["report", "out"], []),
        (["report", "--st"], ["--strategies"]),
        (["doctor", "out", "--pro"], ["--processes"]),
        (["verdict", "--js"], ["--json"]),
        (["advise", "--slo"], ["--slo-p99-ms", "--slo-tpot-ms"]),
        (["nothing", "--js"], []),
        (["run", "against=al"], ["against=all"]),
        (["run", "against=batched,base"], ["against=batched,baseline"]),
        (["mode=batched,graph", "mode=batched,group"], ["mode=batched,grouped"]),
        (["ver"], ["verdict", "verify=", "verify_budget_s=", "verify_columns="]),
        (["workload.dt"], ["workload.dtype="]),
        (["mode=batched", "workload.dt"], ["workload.dtype="]),
        (["-m", "timing=c"], ["timing=cupti"]),
        (["run", "arrival.rate"], ["arrival.rate_per_s="]),
        (["run", "batching.stall="], ["batching.stall=false", "batching.stall=true"]),
    ],
)
def test_candidates(words: list[str], wanted: list[str]) -> None:
    assert completion.candidates(words) == wanted


@pytest.mark.parametrize("option", [["--config-dir", "{}"], ["--config-dir={}"], ["-cd", "{}"]])
def test_options_of_the_users_folder_are_candidates(option: list[str], tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/small_one.yaml").touch()
    words = [word.format(tmp_path) for word in option]
    assert completion.candidates(["run", *words, "model=small_"]) == ["model=small_1024", "model=small_one"]


def test_a_folder_that_is_not_named_yet_adds_nothing() -> None:
    assert completion.candidates(["run", "--config-dir", "model=small_"]) == ["model=small_1024"]


ANSWER = 'launchopt() { [[ ${*: -1} != none ]] && echo "timing=$*"; }'
ZSH = """compdef() { }; _files() { print none.txt }; compadd() { print -l $found }
launchopt() { [[ $argv[-1] != none ]] && print timing=$*; true }
words=(launchopt WORDS); CURRENT=$#words; _launchopt"""
FISH = """function launchopt; test $argv[-1] != none; and echo 'timing='(string join ' ' $argv); end
function __fish_complete_path; echo $argv.txt; end
complete -C 'launchopt WORDS'"""


def _answer(shell: str, script: str) -> list[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: apt install {shell}")
    bare = {"bash": "--norc", "zsh": "-f", "fish": "--no-config"}[shell]
    done = subprocess.run(
        [shell, bare, "-c", f"{completion.SCRIPTS[shell]}\n{script}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines()


def test_bash_asks_and_cuts_what_stands_before_an_equals_sign() -> None:
    show = 'COMP_LINE="launchopt WORDS"; COMP_POINT=${#COMP_LINE}; _launchopt; printf "%s\\n" "${COMPREPLY[@]}"'
    found = _answer("bash", f"{ANSWER}\n{show}".replace("WORDS", "run timing=cu"))
    assert found == ["completion words run timing=cu"]


def test_bash_leaves_a_word_without_candidates_to_file_names() -> None:
    show = 'COMP_LINE="launchopt report none"; COMP_POINT=${#COMP_LINE}; _launchopt; echo "${#COMPREPLY[@]}"'
    assert _answer("bash", f"{ANSWER}\n{show}") == ["0"]


@pytest.mark.parametrize(("shell", "ask"), [("zsh", ZSH), ("fish", FISH)])
def test_other_shells_ask_with_the_words_so_far_and_else_offer_files(shell: str, ask: str) -> None:
    words = "run timing=c"
    assert _answer(shell, ask.replace("WORDS", words)) == [f"timing=completion words {words}"]
    assert _answer(shell, ask.replace("WORDS", "report none")) == ["none.txt"]


def test_without_a_candidate_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert completion.main(["words", "report", "out"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("shell", completion.SCRIPTS)
def test_each_shell_has_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    completion.main([shell])
    assert "launchopt completion words" in capsys.readouterr().out
