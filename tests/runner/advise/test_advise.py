"""`launchopt advise`: what runs here, the files it writes, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.results.advices import CHAT, EXPERTS, MODEL

from launchopt.devices.base import DeviceInfo
from launchopt.errors import DeviceError, Interrupted
from runner import commands
from runner.advise.__main__ import _removed_without_results


def _no_gpu(index: int) -> DeviceInfo:
    raise DeviceError("device=cuda: no GPU here")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--model", "nowhere.json"], "nowhere.json: no such file"),
        (["--list", "nowhere.csv"], "nowhere.csv: cannot be read"),
        (["--model", "lama_3_8b"], "or the path of a config.json; did you mean --model llama_3_8b"),
        (["--model", "broken.json"], "broken.json"),
        (["--model", "negative.json"], "hidden_size=-64: must be a whole number from 1"),
        (["--model", "large.json", "--device", "cpu"], "GB of main memory may be used: give a smaller model, or fewer"),
        (["--model", "own", "--device", "cuda"], "device=cuda: no GPU here"),
        (["--model", "own", "--device", "cpu", "--budget-s", "1"], "--budget-s=1: must be 10 or more"),
        (["--trace", "broken.json"], "broken.json: not JSON"),
        (["--list", "/dev/zero"], "/dev/zero: cannot be read: a device"),
        (["--list", "gemms.csv", "--slo-tpot-ms", "1"], "only a model has tokens"),
        (["--list", "gemms.csv", "--requests", "2"], "only a model has requests"),
        (["--model", "own", "--list", "gemms.csv"], "--list: not allowed with argument --model"),
        (["--requests", "2"], "one of the arguments --model --trace --list is required"),
        (["--model", "own", "--trace", "gemms.csv"], "only a Mooncake trace of requests, with hash_ids, goes with"),
        (
            ["--trace", "chat.jsonl"],
            "holds requests, not launches: add --model config.json, or type launchopt",
        ),
        (["--model", "experts.json", "--slo-tpot-ms", "1"], "and experts of a layer, have no tokens"),
        (["--model", "nowhere.json", "--budget-s", "0"], "--budget-s: 0: must be a number above 0"),
        (["--model", "own", "--output", "own"], "is there already"),
        (["--model", "new${x/config.json"], "new${x/config.json: has ${ in its name"),
        (
            ["--model", "own", "--output", "/dev/null/new"],
            "--output=/dev/null/new: cannot be written to: Not a dir",
        ),
        (["--model", "own", "--output", "new${x"], "--output=new${x: has ${ in its name"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str],
    wanted: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text('{"hidden_size": ')
    Path("negative.json").write_text(json.dumps(MODEL | {"hidden_size": -64}))
    Path("experts.json").write_text(json.dumps(MODEL | EXPERTS))
    Path("chat.jsonl").write_text(CHAT)
    Path("large.json").write_text(json.dumps(MODEL | {"hidden_size": 2 << 20}))
    monkeypatch.setattr("launchopt.devices.cuda.info.cuda_info", _no_gpu)
    monkeypatch.setattr("runner.advise.__main__._running_s", lambda: 0.0)  # the tests' process is older than a budget
    before = sorted(tmp_path.rglob("*"))
    try:
        code = commands.main(["advise", *words])
    except SystemExit as ended:
        code = int(ended.code or 0)
    error = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    assert code == 2
    assert wanted in error
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("has_ended", [False, True])
def test_an_error_leaves_no_folder_without_trials_and_names_one_with_them(
    has_ended: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "below" / "advice"

    def interrupted() -> None:
        with _removed_without_results(folder):
            (folder / "round_1").mkdir(parents=True)
            if has_ended:
                (folder / "round_1/summary.parquet").touch()
            raise Interrupted("interrupted")

    with pytest.raises(Interrupted):
        interrupted()
    assert (folder.exists(), folder.parent.exists()) == (has_ended, has_ended)
    assert capsys.readouterr().err == (f"no advice; the trials that ended are in {folder}\n" if has_ended else "")
