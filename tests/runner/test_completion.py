"""Completion: candidates for the last word, and the script of bash."""

from __future__ import annotations

import subprocess

import pytest

from runner import completion


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["verd"], ["verdict"]),
        (["run", "timing="], ["timing=cupti", "timing=events", "timing=host", "timing=torch"]),
        (["run", "workload.dt"], ["workload.dtype="]),
        (["run", "workload.dtype=f"], ["workload.dtype=fp16", "workload.dtype=fp32"]),
        (["device=c"], ["device=cpu", "device=cuda"]),
        (["report", "out"], []),
        (["ver"], ["verdict", "verify_columns="]),
        (["workload.dt"], ["workload.dtype="]),
        (["mode=batched", "workload.dt"], ["workload.dtype="]),
        (["-m", "timing=c"], ["timing=cupti"]),
        (["run", "arrival.rate"], ["arrival.rate_per_s="]),
        (["run", "batching.stall="], ["batching.stall=false", "batching.stall=true"]),
    ],
)
def test_candidates(words: list[str], wanted: list[str]) -> None:
    assert completion.candidates(words) == wanted


def test_bash_reads_the_script_and_cuts_what_stands_before_an_equals_sign() -> None:
    ask = 'launchopt() { echo timing=cupti; }; COMP_LINE="launchopt run timing=cu"; COMP_POINT=${#COMP_LINE}'
    script = f'{completion.BASH}\n{ask}\n_launchopt; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() in ("cupti", "timing=cupti")
