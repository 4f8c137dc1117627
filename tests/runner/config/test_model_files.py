"""`model=PATH` takes a model from a config.json wherever a model's name can stand, and opens no other way in."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from support.config.model_cards import REAL, TINY, TINY_MIXTURE, write_config
from support.config.override_sets import Outcome, taken

from launchopt.errors import DataError
from runner.budget import read_model
from runner.config.typed.renamed import current_word
from runner.help.settings import composed
from runner.run.resume import OF_EVERY_MODEL, config_hash, plain

DECODE = "device=cpu workload=decode workload.cache=hot workload.tokens=2"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def tried(tmp_path: Path, words: str) -> Outcome:
    """Pass words to the command line in a folder without anything else in it."""
    folder = tmp_path / "runs"
    folder.mkdir(exist_ok=True)
    outcome = taken([*DECODE.split(), *words.split()], folder)
    assert outcome.fault is None
    return outcome


def refused(tmp_path: Path, words: str) -> str:
    outcome = tried(tmp_path, words)
    assert outcome.exit_code == 2
    assert outcome.stderr.count("\n") == 1
    return outcome.stderr.removeprefix("error: ")


def test_a_path_may_name_a_file_or_a_folder_from_where_the_user_is(tmp_path: Path) -> None:
    write_config(tmp_path / "mine", TINY)
    write_config(tmp_path, TINY | {"hidden_size": 32}, "small.json")
    (tmp_path / "runs").mkdir()
    for path in ("../mine", "../mine/", "./../mine/config.json", str(tmp_path / "mine")):
        (plan,) = tried(tmp_path, f"model={path}").plans
        assert (plan.config.model.name, plan.config.model.hidden, plan.stream.layers) == ("mine", 64, 2)
    write_config(tmp_path / "runs", TINY)
    assert [plan.config.model.name for plan in tried(tmp_path, "model=.").plans] == ["runs"]
    (plan,) = tried(tmp_path, "model=../small.json model.layers=1 model.name=own").plans
    assert (plan.config.model.name, plan.config.model.hidden, plan.stream.layers) == ("own", 32, 1)


def test_a_sweep_takes_paths_and_names(tmp_path: Path) -> None:
    for name in ("a", "b c"):
        write_config(tmp_path / "runs" / name, TINY)
    outcome = taken(["-m", *DECODE.split(), "model=./a,'b c/config.json',tiny"], tmp_path / "runs")
    assert outcome.fault is None, outcome.stderr
    assert [plan.config.model.name for plan in outcome.plans] == ["a", "b_c", "tiny"]


def test_an_own_option_of_that_name_comes_first(tmp_path: Path) -> None:
    text = "defaults: [/schema/model/base@_here_, _self_]\n{name: own, hidden: 8}\n"
    write_config(tmp_path / "mine/model/ours", text.replace("{name: own, hidden: 8}", "name: own\nhidden: 8"), "x.yaml")
    assert composed(["workload=decode", "model=ours/x"], "mine").model.hidden == 8


def test_an_experiment_of_the_user_may_name_a_path(tmp_path: Path) -> None:
    write_config(tmp_path / "models/a", TINY)
    text = "# @package _global_\ndefaults:\n  - override /workload: decode\n  - override /model: models/a\n"
    write_config(tmp_path / "mine/experiment", text, "night.yaml")
    assert composed(["experiment=night"], "mine").model.name == "a"
    write_config(tmp_path / "mine/experiment", text.replace("models/a", "../models/a"), "night.yaml")
    with pytest.raises(DataError, match="hidden folder or above"):
        composed(["experiment=night"], "mine")


@pytest.mark.parametrize("named", ["{folder}/.cache/a", "{folder}/.cache/a/config.json"])
def test_an_experiment_of_the_user_may_name_a_model_in_a_hidden_folder_by_its_whole_path(
    named: str, tmp_path: Path
) -> None:
    """Downloads of Hugging Face are in ~/.cache."""
    write_config(tmp_path / ".cache/a", TINY)
    path = named.format(folder=tmp_path)
    text = f"# @package _global_\ndefaults:\n  - override /workload: decode\n  - override /model: {path}\n"
    write_config(tmp_path / "mine/experiment", text, "night.yaml")
    assert composed(["experiment=night"], "mine").model.name == "a"
    write_config(tmp_path / "mine/experiment", text.replace("/.cache/", "/.cache/../.cache/"), "night.yaml")
    with pytest.raises(DataError, match="hidden folder or above"):
        composed(["experiment=night"], "mine")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("./nope", "nope: no such file; allowed: the path of a config.json, or of a folder with one"),
        ("/nope/config.json", "/nope/config.json: no such file"),
        ("../../x", "../../x: no such file"),
        ("./.hidden.json", ".hidden.json: no such file"),
        ("./pipe", "pipe: cannot be read: a named pipe"),
        ("./text.yaml", "text.yaml: not the JSON of a model"),
        ("bare", "model=bare: no such model; did you mean model=./bare?"),
        ("typo", "model=typo: no such model; "),
        ("./negative", "negative/config.json: hidden_size=-64: must be a whole number from 1 to 2147483647"),
        ("./other", "other/config.json: model_type=rwkv: an unknown architecture; allowed: deepseek_v2"),
    ],
)
def test_a_path_without_a_model_is_refused_in_one_line(path: str, message: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write_config(runs / "bare", TINY)
    write_config(runs / "negative", TINY | {"hidden_size": -64})
    write_config(runs / "other", TINY | {"model_type": "rwkv"})
    write_config(runs, "name: x\n", "text.yaml")
    os.mkfifo(runs / "pipe")
    before = sorted(runs.rglob("*"))
    outcome = taken([*DECODE.split(), f"model={path}"], runs)
    assert (outcome.exit_code, outcome.plans, sorted(runs.rglob("*"))) == (2, [], before)
    assert outcome.stderr.startswith(f"error: {message}")
    assert outcome.stderr.count("\n") == 1


def test_one_bad_file_refuses_a_sweep_before_its_first_job(tmp_path: Path) -> None:
    write_config(tmp_path / "runs/a", TINY)
    outcome = taken(["-m", *DECODE.split(), "model=a/config.json,b/config.json"], tmp_path / "runs")
    assert (outcome.exit_code, outcome.plans) == (2, [])
    assert outcome.stderr.startswith("error: b/config.json: no such file")


MIXTURES: list[tuple[str, str | None]] = [
    ("ordering=none", None),
    ("ordering=none workload.users=2", "model=m: has experts"),
    ("", "model=m: has experts, which run as GEMMs without order only: workload=decode ordering=none workload.users=1"),
    ("workload=layer", "model=m: has experts"),
    ("workload=qkv", "model=m: has experts"),
    ("workload=prefill ordering=none", "model=m: has experts"),
]


@pytest.mark.parametrize(("words", "message"), MIXTURES)
def test_experts_run_as_gemms_without_order_and_nothing_else_does(
    words: str, message: str | None, tmp_path: Path
) -> None:
    write_config(tmp_path / "m", TINY_MIXTURE)
    words = f"model={tmp_path}/m {words}"
    if message is not None:
        assert refused(tmp_path, words).startswith(message)
        return
    (plan,) = tried(tmp_path, words).plans
    assert plan.stream.commands == 2 * 2 * (3 + 2 * 2), "tokens, layers, attention and router, two experts"
    assert {(shape.m, shape.k) for shape in plan.stream.shapes} == {
        *((128, 64), (64, 64), (4, 64)),  # qkv, o, router
        *((256, 64), (64, 128)),  # of an expert
    }
    (notice,) = [each for each in plan.notices if "experts" in each]
    unmodelled = "the choice of 2 of 4 experts, and the sum of their outputs (only workload=moe does)"
    assert notice == f"m: no workload runs {unmodelled}"


def test_a_run_does_not_say_that_it_lacks_what_it_has(tmp_path: Path) -> None:
    config = TINY_MIXTURE | {"quantization_config": {"quant_method": "fp8"}}
    write_config(tmp_path / "m", config)
    words = f"model={tmp_path}/m workload=moe workload.steps=2"
    (plain,) = tried(tmp_path, words).plans
    assert "m: no workload runs quantized weights (fp8) (only workload.weights does)" in plain.notices
    (packed,) = tried(tmp_path, f"{words} workload.weights=fp8").plans
    assert not any("no workload runs" in each for each in packed.notices)


def test_the_user_reads_in_which_dtype_a_model_was_published(tmp_path: Path) -> None:
    write_config(tmp_path / "m", TINY | {"torch_dtype": "bfloat16"})
    (plan,) = tried(tmp_path, f"model={tmp_path}/m").plans
    assert "m: published in bfloat16, run in workload.dtype=fp32" in plan.notices
    (plan,) = tried(tmp_path, f"model={tmp_path}/m workload.dtype=bf16").plans
    assert not [each for each in plan.notices if each.startswith("m: ")]
    write_config(tmp_path / "m", TINY)
    for words in (f"model={tmp_path}/m", "model=tiny"):
        (plan,) = tried(tmp_path, words).plans
        assert not [each for each in plan.notices if "published" in each], "the file does not say"


def test_a_path_may_begin_in_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_config(tmp_path / "m", TINY)
    assert len(tried(tmp_path, "model='~/m'").plans) == 1


def test_layers_beyond_memory_are_cut_and_named(tmp_path: Path) -> None:
    write_config(tmp_path / "m", TINY | {"num_hidden_layers": 1000, "hidden_size": 2048, "intermediate_size": 8192})
    (plan,) = tried(tmp_path, f"model={tmp_path}/m workload.replicas=1").plans
    assert 1 <= plan.stream.layers < 1000
    text = f"layers: {plan.stream.layers} of m's 1000, as many as fit into"
    assert any(each.startswith(text) for each in plan.notices)
    write_config(tmp_path / "m", TINY | {"hidden_size": 1 << 20, "intermediate_size": 1 << 30})
    assert " GB" in refused(tmp_path, f"model={tmp_path}/m")
    write_config(tmp_path / "m", TINY | {"hidden_size": 1 << 16, "intermediate_size": 1 << 17})
    text = refused(tmp_path, f"model={tmp_path}/m")
    assert re.match(r"one layer needs \d+\.\d GB, \d+\.\d GB of them to check its largest weight, and ", text)
    assert text.rstrip().endswith("may be used: choose a smaller model")


def test_the_budget_takes_a_path(tmp_path: Path) -> None:
    shape = read_model(str(write_config(tmp_path / "m", REAL["Qwen--Qwen3-8B"].config)))
    assert (shape.name, shape.layers, shape.hidden) == ("m", 36, 4096)
    with pytest.raises(DataError, match="no such file"):
        read_model("./nope")


def test_an_old_name_in_a_path_is_a_folder() -> None:
    assert current_word("model=./predecessor/config.json") == "model=./predecessor/config.json"
    assert current_word("model=tiny,predecessor") == "model=tiny,small_1024"


def test_resume_knows_a_run_by_the_numbers_of_the_file_and_not_by_its_path(tmp_path: Path) -> None:
    write_config(tmp_path / "a/m", TINY)
    write_config(tmp_path / "b/m", TINY)
    one, other = (plain(composed(["workload=decode", f"model={tmp_path}/{each}/m"])) for each in "ab")
    assert config_hash(one) == config_hash(other)
    write_config(tmp_path / "b/m", TINY | {"intermediate_size": 256})
    assert config_hash(one) != config_hash(plain(composed(["workload=decode", f"model={tmp_path}/b/m"])))


def test_a_run_of_before_these_settings_is_known_by_its_hash() -> None:
    config = plain(composed(["workload=decode", "model=tiny"]))
    older = {key: value for key, value in config["model"].items() if key not in OF_EVERY_MODEL}
    assert older.keys() < config["model"].keys() == older.keys() | OF_EVERY_MODEL.keys()
    assert config_hash(config) == config_hash(config | {"model": older})
    assert config_hash(config) != config_hash(config | {"model": older | {"experts": 2}})
