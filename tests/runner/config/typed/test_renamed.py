"""Old names of words that users type: today's is used, and a notice says so."""

from __future__ import annotations

import pytest
from support.config.composing import configured

from runner.config.typed.renamed import current_words


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("experiment=remedies", "experiment=strategies"),
        ("+experiment=remedies/decode_1", "+experiment=strategies/decode_1"),
        ("table=remedies_layer,remedies_decode_1", "table=strategies_layer,strategies_decode_1"),
        ("experiment=predecessor_tables/decode", "experiment=gpu_kernel_batcher/decode"),
        ("model=predecessor,tiny", "model=small_1024,tiny"),
        ("--remedies", "--strategies"),
    ],
)
def test_an_old_name_is_todays_and_a_line_says_so(old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert current_words(["-m", old]) == ["-m", new]
    (notice,) = capsys.readouterr().err.splitlines()
    assert notice == f"notice: {old} is now {new}; version 0.3.0 drops the old name"


def test_other_words_stay_as_they_are_without_a_notice(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-m", "experiment=qkv", "hydra.run.dir=outputs/remedies_1", "trace.path=remedies", "mode=graph", "--help"]
    assert current_words(words) == words
    assert capsys.readouterr().err == ""


def test_todays_names_compose() -> None:
    assert configured("experiment=strategies/decode_1") == configured("table=strategies_decode_1")
