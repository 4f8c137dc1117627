"""What a tired user types, and the answer: one line that says what to type instead."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from support.config.override_sets import taken
from support.config.quick_hydra import quicken
from support.processes.refusals import HYDRAS_NOISE, MOST_CHARACTERS

from runner.cli import run
from runner.config.typed.names import owners, settings_near, unknown_setting

REPLAY = "workload=decode model=tiny arrival=replay arrival.path=own.csv"
MANY = ",".join(map(str, range(1000, 1030)))
MISTAKES = {
    # options of groups
    "mode=batchd": "mode=batchd: no such mode; did you mean mode=batched? launchopt run mode=help lists all",
    "mode=typo": "mode=typo: no such mode; allowed: auto, baseline, batched,",
    "mode=Batched": "did you mean mode=batched?",
    "workload=batched": "did you mean mode=batched?",
    "workload=gemv-micro": "did you mean workload=gemv_micro?",
    "sampling=topk": "did you mean sampling=top_k?",
    "device=gpu": "device=gpu: no such device; allowed: auto, cpu, cuda; did you mean device=cuda?",
    "model=llama3": "did you mean model=llama_3_8b, model=llama_3_70b or model=llama_3_2_1b?",
    "timing=nsys": "did you mean timing=cupti?",
    "workload=null": "workload=null: no such workload; allowed: decode,",
    "experiment=qkv/nope": "experiment=qkv/nope: no such experiment; allowed: azure_llama_3_8b,",
    "experiment=waterfall": "needs a GPU, 120 minutes; on a CPU run table=waterfall_tiny, or add device=cpu and",
    "experiment=timeout_bucket hydra.mode=RUN": "needs a GPU, 3 minutes; on a CPU run experiment=quick, or",
    "mode=graph+norm": "a label of against and of tables; on the command line type mode=graph 'mode",
    "mode=graph+pdl-coalesce": "type mode=graph mode.coalesce=false mode.pdl=true",
    "mode=graph+nrm": "mode=graph+nrm: nrm is no choice; allowed: ",
    "mode=3": "mode=3: no such mode; allowed: auto, baseline,",
    "table=null": "table=null: chooses nothing; leave table out",
    "hydra/launcher=rq": "hydra/launcher=rq: no launcher of this program;",
    "workload@x=decode": "did you mean workload=decode?",
    "workload/decode=1": "did you mean workload=decode?",
    # keys
    "batching.timeot_us=5": "batching.timeot_us=5: no such setting of batching; allowed: idle_us, max_batch, stall,",
    "batching.timeout=5": "did you mean batching.timeout_us?",
    "timeout_us=5": "timeout_us=5: no such setting; did you mean batching.timeout_us?",
    "max_batch=64": "did you mean batching.max_batch?",
    "batch_size=64": "did you mean batching.max_batch?",
    "iterations=5": "did you mean repeats?",
    "repeat=3": "repeat=3: no such setting; did you mean repeats or workload.repeat?",
    "workload=decode repeat=3": "repeat=3: no such setting; did you mean repeats or repeats_limit_s?",
    "workload=decode workload.token=4": "users, weights; did you mean workload.tokens or workload.prompt_tokens?",
    "output_dir=here": "did you mean hydra.run.dir?",
    "modes=batched": "did you mean mode, ",
    "workload.model=tiny": "did you mean model?",
    "hydra.run.dri=here": "did you mean hydra.run.dir?",
    "+batching.timeot_us=5": "did you mean batching.timeout_us?",
    "+workload=decode": "+workload=decode: exists already; did you mean workload=decode?",
    "++model=tiny": "++model=tiny: exists already; did you mean model=tiny?",
    "model=[./mine]": "model=[./mine]: one option, not a list; did you mean model=./mine?",
    "model=~/mine": """model=~/mine: Hydra cannot read this (a ~ needs quotes); did you mean "model='~/mine'"?""",
    "+seed=1": "+seed=1: exists already; did you mean seed=1?",
    "~bogus": "~bogus: nothing to delete",
    "seed.x=1": "seed.x=1: seed is one value and holds no settings; did you mean seed=1?",
    "batching=5": "did you mean batching.max_batch=...?",
    "workload=gemv_micro workload.tokenz=3": "no such setting of workload; allowed: cache, commands, dtype, k, m, n,",
    # settings of another option
    "mode=batched mode.streams=4": "mode=multistream; did you mean mode=multistream instead of mode=batched?",
    "mode=batched mode.tokens=2": "mode.tokens belongs to mode=graph_device or graph_loop; did you mean mode=graph_",
    "mode.streams=4": "did you mean to add mode=multistream?",
    "workload=gemv_micro workload.tokens=4": "did you mean workload=decode instead of workload=gemv_micro?",
    "mode=engine mode.tokens=2": "belongs to mode.submit=graph_device, graph_loop; did you mean to add mode.submit=",
    "mode=engine mode.tokens=many": "mode.tokens=many: not of the right type; allowed: whole numbers from 1 to 4096",
    "workload.tokens=4": "workload.tokens belongs to workload=decode, elementwise_chain, layer, linear_epilogue,",
    "arrival.rate_per_s=5": "belongs to arrival=bursty, constant or poisson; did you mean to add arrival=poisson?",
    "arrival.path=own.csv": "did you mean to add arrival=replay?",
    # values
    "workload.dtype=fp8": "workload.dtype=fp8: not one of its values; allowed: fp32, fp16, bf16",
    "ordering=per-request": "did you mean ordering=per_request?",
    "batching.max_batch=many": "not of the right type; allowed: whole numbers from 1",
    "batching.max_batch=1e3": "did you mean batching.max_batch=1000?",
    "workload.commands=10k": "did you mean workload.commands=10000?",
    "workload.commands=1,000": "did you mean workload.commands=1000 or -m workload.commands=1,000?",
    "queue.capacity=1000": "allowed: powers of two; did you mean queue.capacity=512 or queue.capacity=1024?",
    "batching.stall=perhaps": "allowed: true or false",
    "slo.ttft_ms=soon": "allowed: numbers above 0 or null",
    "device.gpus=[a,1]": "not a list of whole numbers; allowed: lists of whole numbers from 0 or null",
    "mode.fuse=norm": "mode.fuse=norm: not a list; allowed: lists of activate, attention, combine, epilogue,",
    "mode=graph mode.fuse=qkv,norm": "silu or null; did you mean mode.fuse=[qkv,norm]?",
    "mode=graph mode.fuse=[[norm]]": "mode.fuse=[[norm]]: a list or section within a list; allowed: lists of",
    "mode=graph mode.fuse=[,norm]": "mode.fuse=[,norm]: a comma too many; did you mean mode.fuse=[norm]?",
    "mode=graph mode.fuse=[qkv,,norm,]": "a comma too many; did you mean mode.fuse=[qkv,norm]?",
    "mode=graph 'mode.fuse =[norm]'": "a space before the =; did you mean 'mode.fuse=[norm]'?",
    "mode=graph mode.name=engine": "mode.name=engine: choose another with mode=...; allowed: graph",
    "mode={name:graph}": "mode={name:graph}: an option, not a section; allowed: mode=NAME; did you mean mode=graph?",
    "mode={streams:4}": "allowed: mode=NAME; did you mean mode.streams=4?",
    "model={name:tiny,layers:2}": "an option, not a section; allowed: model=NAME; did you mean model=tiny?",
    "mode=graph mode.fuse=qkv,nrm": "did you mean mode.fuse=[qkv,norm]?",
    "mode=graph mode.fuse=[qkv,norm": "a bracket is not closed; allowed: 2,4 or [2,4] or range(2,5); did you mean mode",
    "mode=graph mode.fuse=[qkv, norm, silu] seed=1": "did you mean mode.fuse=[qkv,norm,silu]?",
    "mode.fuse=[norm,null] mode=graph": "mode.fuse=[norm,null]: not a list of names; allowed: lists of activate,",
    "mode.submit=2": "mode.submit=2: not one of its values; allowed: graph, graph_device,",
    "repeats=often": "allowed: whole numbers from 1 to 10000, or auto",
    "against=grph": "against=grph: no such mode; allowed: all alone, or modes other than mode=batched:",
    "against=[grph]": "did you mean against=graph?",
    "against=[auto]": "against=auto: stands for the base, and goes alone; the mode that measurements choose is mode=",
    "table=waterfall_tiny workload=gemv_256": "workload=gemv_256: experiment/waterfall/tiny.yaml sets workload.merged, "
    "which it does not have: leave workload=gemv_256 out",
    "against=[all,baseline]": "against=all: all goes alone; allowed: all alone, or",
    "against=[baseline,baseline]": "against=baseline: is named twice; name each mode once",
    "against=graph,baseline,graph": "against=graph: is named twice; name each mode once",
    "mode=graph against=baseline,graph": "against=graph: is the mode itself",
    "workload.commands=${commands}": "did you mean ${record.commands} or ${workload.commands}?",
    "workload.commands=${oc.env:NO_SUCH_NAME}": "no such environment variable: NO_SUCH_NAME",
    "hydra.run.dir=": "hydra.run.dir=: names no folder; did you mean hydra.run.dir=outputs/run/NAME?",
    "hydra.run.dir=''": "hydra.run.dir=: names no folder",
    "-m hydra.sweep.dir=": "hydra.sweep.dir=: names no folder",
    r'''"hydra.run.dir='new\\${x'"''': "hydra.run.dir=new${x: has ${ in its name, which Hydra reads: name an",
    r"""-m "hydra.sweep.dir='new\\${x'" seed=1,2""": "hydra.sweep.dir=new${x: has ${ in its name",
    # sweeps
    "mode=baseline,batched": "several values make a sweep; did you mean -m mode=baseline,batched?",
    "-m mode=baseline,batchd": "mode=batchd: no such mode",
    "-m workload.commands=1,many": "workload.commands=many: not of the right type",
    "workload=[decode,prefill]": "one option, not several; did you mean -m workload=decode,prefill?",
    "against=baseline,": "did you mean against=[baseline]?",
    "-m repeats=1,2,": "did you mean repeats=1,2?",
    "-m batching.max_batch=rnge(1,5)": "no such function: rnge; allowed:",
    "-m batching.max_batch=range(1,": "a bracket is not closed",
    "mode=batched]": "mode=batched]: a bracket is closed that none opens; did you mean mode=batched?",
    # what Hydra's grammar cannot read
    'workload.path="it\'s"': "(a quote or bracket without its partner); did you mean \"workload.path='it\\'s'\"?",
    "'workload.path=$x:{a}'": "did you mean 'workload.path='\"'\"'$x:{a}'\"'\"''?",
    # a proposed command is whole
    f"workload.commands={MANY}": f"did you mean -m workload.commands={MANY}?",
    f"-m workload.commands={MANY},": f"did you mean workload.commands={MANY}?",
    # words that are no settings
    "decode": "decode: not of the form key=value; did you mean workload=decode?",
    "mode batched": "did you mean mode=batched?",
    "workload = decode": "did you mean workload=decode?",
    "mode:batched": "did you mean mode=batched?",
    "repeats==5": "did you mean repeats=5?",
    "=1": "no setting is named before the =",
    "'seed=\"a'": "did you mean seed=a?",
    "workload..commands=1": "did you mean workload.commands?",
    "own.csv": "own.csv: not of the form key=value",
    # options with dashes
    "--bogus": "--bogus: no such option; allowed: -m, --help, --version,",
    "--repeats=5": "did you mean repeats=5?",
    "--mode batched": "did you mean mode=batched?",
    "--max-batch=64": "did you mean batching.max_batch=64?",
    "--multi-run": "did you mean --multirun?",
    "--versio": "--versio: no such option",
    "--multir seed=1,2": "did you mean --multirun?",
    "-m seed=1,2 --cfg job": "--multirun and --cfg: only one of them",
    "--cfg=x": "invalid choice: 'x'; allowed: 'job', 'hydra', 'all'",
    "--config-dir=nope": "nope: no such folder",
    "--config-dir": "expected one argument",
    "--config-name=nope": "--config-name=nope: no such config file",
    # what is missing
    "arrival=poisson": "arrival.rate_per_s is required: arrivals a second, on average, above 0; type "
    "arrival.rate_per_s=1000",
    "workload=list": "workload.path is required: CSV or JSON with m, n, k (op, dtype, count, weight, group, input), or "
    "an execution trace; type workload.path=gemms.csv",
    "workload=trace": "recorded with record_shapes=True; type workload.path=trace.json",
    "workload=decode model=tiny arrival=replay": "arrival.path is required: a file of requests: an Azure or Mooncake "
    "trace, or CSV; type arrival.path=requests.csv",
    "~mode": "mode is required: one of its options; type mode=batched",
}


@pytest.fixture(autouse=True, scope="module")
def _quickened() -> None:
    quicken()


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_answered_in_one_line_with_what_to_type(typed: str, tmp_path: Path) -> None:
    outcome = taken(["device=cpu", *shlex.split(typed)], tmp_path)
    assert MISTAKES[typed] in outcome.stderr
    assert outcome.stderr.startswith("error: ")
    assert outcome.stderr.count("\n") == 1
    assert len(outcome.stderr) <= MOST_CHARACTERS
    assert [word for word in HYDRAS_NOISE if word in outcome.stderr] == []
    assert (outcome.exit_code, outcome.stdout, outcome.plans, outcome.left) == (2, "", [], [])


def test_a_current_folder_with_the_name_of_a_reference_is_named(tmp_path: Path) -> None:
    here = tmp_path / "new${oc.env:HOME}"
    here.mkdir()
    outcome = taken(["device=cpu"], here)
    assert outcome.stderr == f"error: {here}: this folder has ${{ in its name, which Hydra reads: work in another one\n"
    assert (outcome.exit_code, outcome.plans, outcome.left) == (2, [], [])


@pytest.mark.parametrize(
    ("typed", "modes"),
    [
        ("against=baseline", ["baseline", "batched"]),
        ("against=baseline,coalesced workload=decode model=tiny", ["baseline", "coalesced", "batched"]),
        ("against=[baseline]", ["baseline", "batched"]),
        ("against=[]", ["batched"]),
    ],
)
def test_against_is_a_mode_or_a_list_of_modes(typed: str, modes: list[str], tmp_path: Path) -> None:
    (plan,) = taken(["device=cpu", *typed.split()], tmp_path).plans
    assert [arm.mode for arm in plan.arms] == modes


def test_against_all_is_every_other_mode_that_can_run_the_work(tmp_path: Path) -> None:
    for typed in ("against=all", "against=[all]"):
        (plan,) = taken(["device=cpu", typed], tmp_path).plans
        assert {"baseline", "batched"} <= {arm.mode for arm in plan.arms}
        assert "coalesced" in plan.refused


def test_in_a_sweep_several_modes_of_against_are_jobs(tmp_path: Path) -> None:
    plans = taken(["-m", "device=cpu", "against=baseline,[]"], tmp_path).plans
    assert [[arm.mode for arm in plan.arms] for plan in plans] == [["baseline", "batched"], ["batched"]]


def test_a_file_of_arrivals_is_taken_whole(tmp_path: Path) -> None:
    rows = "".join(f"{number},4,2\n" for number in range(30))
    (tmp_path / "own.csv").write_text(f"arrival_ms,prompt_tokens,output_tokens\n{rows}")
    (plan,) = taken(["device=cpu", *REPLAY.split()], tmp_path).plans
    assert plan.stream.requests == 30


def test_every_setting_is_near_itself_and_near_itself_with_a_letter_missing() -> None:
    for key in owners():
        assert settings_near(key) == [key]
        if len(key.rpartition(".")[2]) > 5:
            assert settings_near(f"{key[:-2]}{key[-1]}")


@pytest.mark.parametrize("option", ["workload=decode", "workload=list", "workload=gemv_256", "workload=trace"])
def test_a_setting_of_the_section_is_proposed_only_if_the_message_allows_it(option: str) -> None:
    for key in (each for each in owners() if each.startswith("workload.")):
        words = str(unknown_setting(f"{key}s_", 1, [option])).partition("allowed: ")[2]
        allowed, _, meant = words.partition("; did you mean ")
        proposed = [each for each in meant.replace("?", "").replace(" or ", ", ").split(", ") if "workload." in each]
        assert {each.removeprefix("workload.") for each in proposed} <= set(allowed.split(", "))


def test_a_setting_that_every_option_has_belongs_to_none() -> None:
    assert owners()["workload.dtype"] == owners()["batching.max_batch"] == ()
    assert "belongs to" in str(unknown_setting("mode.patience_s", 1))


def test_hydra_s_own_pages_need_the_name_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--info", "searchpath"]) == 0
    assert "search path" in capsys.readouterr().out
    assert run(["--info"]) == 2
    said = capsys.readouterr()
    assert "this machine: launchopt doctor" in said.err
    assert "Hydra 1" not in said.out
