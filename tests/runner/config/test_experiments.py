"""The experiments that compare strategies: every job composes, is sized as it says, and has something to compare."""

from __future__ import annotations

import re
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from support.paths import ROOT

from launchopt.devices.base import DeviceInfo
from launchopt.devices.shares import whole_weight_bytes
from launchopt.errors import ConfigError
from launchopt.modes import MODES, mode_class
from launchopt.modes.stack import stack_of
from launchopt.stack import preset_of
from launchopt.streams.chains.chain import chain_of
from launchopt.streams.experts.stream import ExpertStream
from runner.config.modes import options_of_label
from runner.config.objects import to_config
from runner.config.schema import Config, register
from runner.config.tables import experiments, mark_of, notice_on_a_cpu, require_gpu, tables
from runner.plan.memory import MEMORY_SHARE
from runner.plan.streams import stream_on
from scripts.reference_goals import FUSED, GOAL_ROWS, LOOPED, Goal

MEMORY_BYTES = 139 << 30
H200 = DeviceInfo("cuda", 0, "NVIDIA H200", MEMORY_BYTES, 50 << 20, "memory of NVIDIA H200", 12 << 20)
BASELINE_US = 8  # about, a command


def composed(*overrides: str, with_hydra: bool = False) -> Any:
    register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("config", list(overrides), return_hydra_config=with_hydra)


def jobs(experiment: str) -> list[list[str]]:
    """The overrides of each job of an experiment's sweep."""
    params = composed(f"experiment={experiment}", with_hydra=True).hydra.sweeper.params
    choices = [[f"{name}={choice}" for choice in str(each).split(",")] for name, each in params.items()]
    return [[f"experiment={experiment}", *job] for job in product(*choices)]


def checked(job: list[str]) -> Config:
    return to_config(composed(*job))


ALL_MODES, QKV = jobs("strategies"), jobs("qkv")


def test_the_workloads_are_those_that_the_report_is_for() -> None:
    named = {table for job in ALL_MODES for name, _, table in [each.partition("=") for each in job] if name == "table"}
    decode = {f"strategies_decode_{requests}" for requests in (1, 16, 64)}
    assert {"strategies_gemv_micro", "strategies_gemv_256", "strategies_prefill", "strategies_layer", *decode} <= named
    assert named == {f"strategies_{path.stem}" for path in (ROOT / "conf/experiment/strategies").glob("*.yaml")}


@pytest.mark.parametrize("job", [*ALL_MODES, *QKV], ids=" ".join)
def test_a_job_fits_and_takes_about_as_long_as_is_meant(job: list[str]) -> None:
    config = checked(job)
    stream = stream_on(config, H200)
    assert stream.arena_bytes < MEMORY_SHARE["cuda"] * MEMORY_BYTES / 4
    assert 0.09 <= stream.commands * BASELINE_US / 1e6 <= 0.7
    table = next(each.partition("=")[2] for each in job if each.startswith("table="))
    text = (ROOT / f"conf{tables()[table]}.yaml").read_text()
    comment = " ".join(text.partition("defaults:")[0].split("#"))
    assert table.startswith("qkv") or f"{stream.commands:,}" in comment
    assert config.repeats >= 5 or table == "timeout_bucket", "fewer have no interval"
    for mode in ("baseline", "batched"):
        assert mode_class(mode).refusal("cuda", stream) is None


@pytest.mark.parametrize("job", ALL_MODES, ids=" ".join)
def test_every_mode_is_asked_for(job: list[str]) -> None:
    config = checked(job)
    assert config.against == ["all"]
    assert config.mode.name == "batched"


@pytest.mark.parametrize("job", QKV, ids=" ".join)
def test_apart_and_merged_run_the_same_stream(job: list[str]) -> None:
    config = checked(job)
    apart = "batched" if "table=qkv_prefill" in job else "coalesced"  # prompts share no launch
    assert {config.mode.name, *config.against} == {"fused_qkv", "baseline", apart}
    assert config.mode.name in MODES
    assert mode_class("fused_qkv").refusal("cuda", stream_on(config, H200)) is None


def test_the_milestone_that_is_reproduced_has_its_sizes() -> None:
    """Three projections of 896 x 896 over 128 columns."""
    stream = stream_on(checked(["experiment=qkv", "table=qkv_prefill", "model=folovllm"]), H200)
    assert (896, 128, 896) in {(shape.m, shape.n, shape.k) for shape in stream.shapes}


@pytest.mark.parametrize("job", jobs("resident"), ids=" ".join)
def test_resident_kernels_and_what_they_are_compared_with_can_run_it(job: list[str]) -> None:
    config = checked(job)
    stream = stream_on(config, H200)
    assert stream.arena_bytes < MEMORY_SHARE["cuda"] * MEMORY_BYTES
    assert config.mode.name in ("persistent", "megakernel")
    for label in (config.mode.name, *config.against):
        assert mode_class(preset_of(label), options_of_label(label)).refusal("cuda", stream) is None, label


@pytest.mark.parametrize("requests", [1, 16])
def test_own_kernels_dependent_launches_fused_graphs_and_the_megakernel_stand_in_one_table(requests: int) -> None:
    config = checked(["experiment=resident", f"table=resident_llama_{requests}"])
    stacks = [stack_of(preset_of(label), options_of_label(label)) for label in config.against]
    alone = [stack.choices - {"coalesce", "stream", "own"} for stack in stacks if stack.kernels == "own"]
    assert alone[:2] == [set(), {"pdl"}]
    assert {"pdl", "graph", "norm", "attention", "silu", "epilogue"} <= alone[2]
    assert config.mode.name == "megakernel"


@pytest.mark.parametrize("job", jobs("many_gpus"), ids=" ".join)
def test_every_stack_can_run_on_each_count_of_gpus_and_fits_an_h100(job: list[str]) -> None:
    config = checked(job)
    stream, tensor = chain_of(stream_on(config, H200)), config.parallel.tensor
    assert stream.tensor == tensor
    assert stream.arena_bytes + whole_weight_bytes(stream) < 76 << 30
    for label in (config.mode.name, *config.against):
        why = mode_class(preset_of(label), options_of_label(label)).refusal("cuda", stream)
        assert (why is None) == (tensor > 1 or "reduce" not in label), label


@pytest.mark.parametrize("row", GOAL_ROWS, ids=lambda row: row.name)
def test_every_mode_of_the_goals_can_run_a_hundred_steps_of_each_model(row: Goal) -> None:
    config = checked(["experiment=goals", f"model={row.model}", f"workload.requests={row.requests}"])
    stream = stream_on(config, H200)
    assert stream.arena_bytes < MEMORY_SHARE["cuda"] * MEMORY_BYTES / 4, "an H100 has space for it"
    assert (config.workload.tokens, config.repeats) == (100, 5)
    assert {FUSED, LOOPED, "graph", "torch_compile", "megakernel"} == {*config.against}
    for label in (config.mode.name, *config.against):
        assert mode_class(preset_of(label), options_of_label(label)).refusal("cuda", stream) is None, label
    weight_bytes = sum(shape.weight_bytes * count for shape, count in stream.counts.items())
    floor_us = weight_bytes / chain_of(stream).tokens / 4.36e6
    assert floor_us == pytest.approx(row.floor_us, rel=0.01), "at 4,360 GB/s, the read rate of an H200"


@pytest.mark.parametrize("job", [*jobs("waterfall"), ["table=waterfall_tiny"]], ids=" ".join)
def test_every_stack_of_a_waterfall_can_run_it_and_orders_share_their_ends(job: list[str]) -> None:
    config = checked(job)
    stream = stream_on(config, H200)
    assert stream.arena_bytes < MEMORY_SHARE["cuda"] * MEMORY_BYTES / 4
    assert len({(order[0], order[-1]) for order in config.waterfall}) == 1
    assert len(set(map(frozenset, config.waterfall))) == len(config.waterfall) == 2
    assert config.repeats >= 5, "fewer have no interval"
    for label in {label for order in config.waterfall for label in order}:
        mode = mode_class(preset_of(label), options_of_label(label))
        assert mode.refusal("cuda", stream) is None, label
        assert job != ["table=waterfall_tiny"] or mode.refusal("cpu", stream) is None, label


def test_a_waterfall_adds_one_choice_at_a_time() -> None:
    """The last step replaces the stack."""
    for order in checked(jobs("waterfall")[0]).waterfall:
        stacks = [stack_of(preset_of(label), options_of_label(label)) for label in order]
        added = [after.choices - before.choices for before, after in pairwise(stacks)]
        assert added[0] == {"coalesce"}
        assert added[-1] == {"megakernel"}
        assert [len(each) for each in added] == [1] * (len(order) - 1)


def test_a_table_is_an_option_of_its_experiment_too() -> None:
    named, nested = composed("table=qkv_prefill"), composed("experiment=qkv/prefill")
    assert named == nested
    assert (named.workload.prompt_tokens, named.mode.name) == (128, "fused_qkv")


def test_a_table_can_be_cut_short_and_swept() -> None:
    assert composed("table=gemv_micro", "workload.commands=20000").workload.commands == 20000
    assert [job[1] for job in QKV[::4]] == ["table=qkv_decode_1", "table=qkv_decode_16", "table=qkv_prefill"]


@pytest.mark.parametrize("path", sorted((ROOT / "conf/experiment").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_experiment_composes(path: Path) -> None:
    assert composed(f"experiment={path.stem}").mode.name in MODES


def test_every_experiment_says_what_it_needs_or_how_long_a_cpu_takes() -> None:
    found = experiments()
    assert found.keys() == {path.stem for path in (ROOT / "conf/experiment").glob("*.yaml")}
    assert found["quick"].startswith("(20 s on two cores) Every stage on little work")
    assert [name for name, text in found.items() if not re.match(r"\((needs a GPU, )?\d+ (s|minutes?)\b", text)] == []


def test_the_quick_experiment_has_a_base_an_interval_and_little_work() -> None:
    config = checked(["experiment=quick"])
    assert config.against == ["baseline"]
    assert config.repeats >= 5, "fewer have no interval whose coverage was shown"
    assert stream_on(config, H200).commands <= 2000


@pytest.mark.parametrize("words", [[], ["model=tiny"], ["device=cpu", "repeats=1"]], ids=" ".join)
@pytest.mark.parametrize("name", sorted(name for name in experiments() if mark_of(name).startswith("needs a GPU")))
def test_an_experiment_for_a_gpu_is_refused_on_a_cpu(name: str, words: list[str]) -> None:
    """It runs on a CPU only for a user who asks for the CPU and chooses a size."""
    with pytest.raises(ConfigError, match=f"experiment={name}: needs a GPU, .*; on a CPU run ") as caught:
        notice_on_a_cpu(name, "device=cpu" in words, [f"experiment={name}", *words])
    proposed = str(caught.value).partition("run ")[2].partition(",")[0]
    assert proposed == ("table=waterfall_tiny" if name == "waterfall" else "experiment=quick")


def test_a_model_for_a_gpu_is_no_size_for_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["experiment=waterfall", "device=cpu", "model=llama_3_2_1b"]
    with pytest.raises(ConfigError, match="add device=cpu and a smaller model or workload"):
        require_gpu(composed(*words, with_hydra=True), words)
    for more in ("model=small_1024", "model=tiny", "workload.layers=1"):
        require_gpu(composed(*words[:2], more, with_hydra=True), [*words[:2], more])
        assert "takes far longer on a CPU" in capsys.readouterr().out


def test_an_experiment_for_a_gpu_with_a_size_of_the_users_starts_on_a_cpu() -> None:
    for word in ("model=tiny", "workload.tokens=2", "table=strategies_decode_1", "+workload.requests=1"):
        assert "takes far longer on a CPU" in notice_on_a_cpu("waterfall", True, ["experiment=waterfall", word])
    assert mark_of("quick") == "20 s on two cores"
    assert mark_of("waterfall/tiny") == mark_of(None) == ""


@pytest.mark.parametrize("job", [*jobs("experts"), *jobs("experts_fp8")], ids=" ".join)
def test_a_layer_with_experts_fits_is_cold_and_runs_in_every_mode(job: list[str]) -> None:
    config = checked(job)
    stream = stream_on(config, H200)
    assert isinstance(stream, ExpertStream)
    layer = stream.layer
    assert (layer.hidden, layer.experts, layer.top_k, layer.inner) == (2048, 128, 8, 768)
    assert stream.arena_bytes < MEMORY_SHARE["cuda"] * MEMORY_BYTES / 4
    assert stream.input_bytes >= 4 * H200.cache_bytes
    assert config.batching.max_batch >= stream.active.max(), "one call has all experts"
    for label in [*config.against, config.mode.label]:
        assert mode_class(preset_of(label), options_of_label(label)).refusal("cuda", stream) is None
