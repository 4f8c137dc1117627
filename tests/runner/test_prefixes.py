"""launchopt prefixes: hit rates of a trace, and one line for what it cannot use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.prefixes import main

LINES = (
    {"timestamp": 0, "input_length": 1536, "output_length": 8, "hash_ids": [0, 1, 2]},
    {"timestamp": 5, "input_length": 1100, "output_length": 8, "hash_ids": [0, 1, 3]},
    {"timestamp": 9, "input_length": 1536, "output_length": 8, "hash_ids": [0, 1, 2]},
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in LINES))
    return path


def test_both_caches_hit_what_the_trace_says(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(trace), "--block", "512"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("3 requests, 4,172 tokens of prompts, blocks of 512 tokens, as many as needed\n")
    assert "| full blocks of prompts that were cached | 62.50% | 62.50% |" in said
    assert "| tokens of prompts that need no step | 61.34% | 61.34% |" in said, "2 and 3 blocks, less the last token"
    assert "| last blocks copied on write | 1 | 1 |" in said
    assert said.endswith("By hash_ids, with all memory and blocks of 512 tokens: 62.50% of blocks (5).\n")


def test_json_has_the_same(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(trace), "--model", "tiny", "--memory-gib", "0.001", "--requests", "2", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["block"] == 16
    assert found["blocks"] > 0
    assert [each["cache"] for each in found["caches"]] == ["hash table", "radix tree"]
    assert found["requests"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "tiny"], "--model=tiny: says how large a block is: add --memory-gib N"),
        (["--memory-gib", "4"], "--memory-gib=4.0: add --model NAME"),
        (["--memory-gib", "4", "--model", "tiny", "--blocks", "3"], "--memory-gib=4.0: leave --blocks out"),
        (["--memory-gib", "1e-9", "--model", "tiny"], "holds no block of 16 tokens of tiny"),
        (["--memory-gib", "4", "--model", "tniy"], "did you mean model=tiny?"),
        (["--block", "0"], "must be a whole number from 1 to 65536"),
        (["--memory-gib", "1e300", "--model", "tiny"], "--memory-gib=1e+300: must be at most 1048576"),
        (["--blocks", "9" * 30], "must be a whole number from 1 to 1099511627776"),
        (["--requests", "9" * 30], "must be a whole number from 1 to 2147483648"),
        (["--requests", "9"], "has 3 requests, not 9"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(
    words: list[str], said: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main([str(trace), *words])
    except SystemExit as stop:
        code = int(str(stop.code))
    assert code == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) <= 2
