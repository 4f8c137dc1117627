"""The help of a run: every setting on a line of its own, within 100 columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runner import app
from runner.help.settings import composed, help_text, settings

WORDS = re.compile(r"\s+")


@pytest.fixture(scope="module")
def page() -> str:
    return help_text([])


def test_a_line_has_key_value_meaning_unit_and_range(page: str) -> None:
    flat = WORDS.sub(" ", page)
    for line in (
        "batching.timeout_us=150.0 longest wait of a bucket's oldest command (us, from 0 to 1000000000)",
        "workload.dtype=fp32 of weights, inputs and outputs (fp32 | fp16 | bf16)",
        "queue.capacity=4096 records of 64 bytes (from 2 to 16777216, a power of two)",
        "seed=0 seed of operands, arrivals and sampling (from 0)",
    ):
        assert f" {line} " in flat


def test_no_line_is_over_100_columns(page: str) -> None:
    assert [line for line in page.splitlines() if len(line) > 100] == []


def test_every_setting_stands_there_once(page: str) -> None:
    keys = [setting.key for setting in settings(composed([]))]
    assert len(keys) > 40
    for key in keys:
        assert len(re.findall(rf"^  {re.escape(key)}=", page, re.M)) == 1


def test_the_values_are_those_of_the_words() -> None:
    text = help_text(["mode=multistream", "batching.max_batch=8"])
    assert "\n  mode.streams=4 " in text
    assert "\n  batching.max_batch=8 " in text


def test_the_users_own_options_are_listed_and_composed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload/small.yaml").write_text(
        "defaults:\n  - /schema/workload/gemv@_here_\n  - _self_\nname: small\nm: 128\nk: 512\ncommands: 1000\n"
    )
    assert app.main(["--config-dir", str(tmp_path), "workload=small", "--help"]) == 0
    out = WORDS.sub(" ", capsys.readouterr().out)
    assert ", qkv, small, trace " in out
    assert " workload.m=128 " in out
