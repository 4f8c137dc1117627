"""The check of an advice: which stacks run beside it, and what it saves; and its parts."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.results.summary_rows import repeats

from launchopt.devices.base import DeviceInfo
from launchopt.errors import DeviceError
from launchopt.recording.results import Row, read_summaries
from runner.advise.answer import lines_of
from runner.advise.halving import Decision
from runner.advise.question import Question, of_model, settled_for
from runner.advise.saving import experiment_text
from runner.advise.search import Batching, Found
from runner.advise.trials import Trials
from runner.config.schema import Config
from runner.report.advised import ANSWER, FILE, SWEEP, markdown
from scripts import advised
from scripts.reference_advised import ADVISED_PARTS, MODELS, REQUESTS
from scripts.reference_check import mistake
from scripts.reference_part import words_of

TINY = {
    **{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"num_key_value_heads": 1, "intermediate_size": 128, "vocab_size": 256, "rms_norm_eps": 1e-5},
}
WALLS_MS = {"graph": 1.0, "batched": 2.0, "coalesced": 9.0, "baseline": 10.0, "engine": 11.0}


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Options whose advice is engine, at once; a short run shows made-up times, in which pointer_array breaks.

    graph_loop can run two layers, as advised, and not one, as in the short run.
    """
    model = tmp_path / "tiny.json"
    model.write_text(json.dumps(TINY))
    output = tmp_path / "out"

    def advice(options: argparse.Namespace, folder: Path) -> list[str]:
        question = of_model(model, 2, "cpu", None).with_settings({"workload.tokens": 4, "workload.layers": 2})
        rows = {"engine": repeats(1.0, mode="engine", setup_ms=1.0, layers=2, tpot_p50_ms=1.0)}
        found = Found(question, rows, "engine", ["engine"], frozenset(), Decision.open, Batching(2, 0.0), 2, folder)
        (folder / "experiment").mkdir(parents=True)
        (folder / "experiment" / "advice.yaml").write_text(experiment_text(found))
        return lines_of(found)

    def able(config: Config, info: DeviceInfo) -> tuple[list[str], dict[str, str]]:
        return [*WALLS_MS, "pointer_array", *(["graph_loop"] if config.workload.layers == 2 else [])], {}

    def run(trials: Trials, question: Question, labels: Sequence[str], times: int, share: float = 1.0) -> list[Row]:
        trials.dropped["pointer_array"] = "broke"
        return [row for label in WALLS_MS for row in repeats(99.0, WALLS_MS[label], mode=label)]

    monkeypatch.setattr(advised, "_advice", advice)
    monkeypatch.setattr(advised, "candidates", able)
    monkeypatch.setattr(Trials, "run", run)
    words = [str(model), "--requests", "2", "--device", "cpu", "--budget-s", "10", "--repeats-s", "0.1"]
    return advised._parser().parsed([*words, "--output", str(output)])


def test_slow_and_broken_stacks_are_left_out_but_never_the_advised_one(options: argparse.Namespace) -> None:
    (options.output / SWEEP).mkdir(parents=True)
    (options.output / SWEEP / "old.txt").write_text("of an earlier start")
    advised.measure(options)
    answer = json.loads((options.output / ANSWER).read_text())
    assert answer["slow"] == {"coalesced": 9.0, "baseline": 10.0, "engine": 11.0}
    assert answer["broken"] == {"pointer_array": "broke"}
    assert (answer["advised"], answer["layers"], answer["stacks"]) == ("engine", 2, 7)
    assert not (options.output / SWEEP / "old.txt").exists()
    page = options.output / FILE
    page.write_text('{"advised": [{"run": "."}]}')
    assert "| tiny fp32, 2 requests, CPU | 2 of 2 | " in markdown(page)
    assert "| 4 of 7, " in markdown(page)
    modes = {row["mode"] for row in read_summaries([options.output / SWEEP])}
    assert modes == {"graph", "batched", "graph_loop", "engine"}


@pytest.mark.parametrize("model", MODELS["gpu"])
def test_the_short_run_on_a_gpu_has_every_stack_that_the_whole_model_has(model: str) -> None:
    l2 = 60 << 20  # of an H200; a layer of a small model would be copied to be four times as large
    info = DeviceInfo("cuda", 0, "none", 1 << 37, l2, "no memory", l2)
    asked = of_model(Path(f"scripts/advised_models/{model}.json"), 4, "cuda", None)
    question = settled_for(asked, asked.config(), info)
    whole = question.with_settings({"workload.layers": asked.config().model.layers})
    short = question.with_settings(advised.FIRST_SIZE["cuda"])
    stacks = advised._stacks(whole, info)
    assert "engine+silu+epilogue+graph_loop+own+pdl" in stacks
    assert advised._stacks(short, info) == stacks


def test_bad_input_is_one_line(
    options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_gpu(kind: str, index: int) -> None:
        raise DeviceError("device=cuda: no GPU here")

    monkeypatch.setattr(advised, "find_device", no_gpu)
    assert advised.main([str(options.model), "--output", str(options.output)]) == 2
    assert capsys.readouterr().err == "error: device=cuda: no GPU here\n"


def test_each_machine_has_three_models_with_four_numbers_of_requests() -> None:
    assert REQUESTS == (1, 16, 64, 4)
    assert [len(set(models)) for models in MODELS.values()] == [3, 3]
    assert len({part.folder for part in ADVISED_PARTS}) == len(ADVISED_PARTS) == 24
    for part in ADVISED_PARTS:
        words = words_of(part.commands[0], {"folder": "out"})
        assert mistake(words) == ""
    for model in {name for names in MODELS.values() for name in names}:
        path = Path(f"scripts/advised_models/{model}.json")
        assert of_model(path, 1, "cpu", None).config().model.name == model
