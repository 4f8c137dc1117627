"""Bad input from the command line: refused in seconds, in a few words, with nothing left behind.

tests/golden/errors.txt holds every message; `UPDATE_GOLDEN=1` writes it anew.
"""

import os
import re
from pathlib import Path

import pytest
from support.paths import ROOT
from support.processes.refusals import Outcome, assert_refused, forked_outcomes, typed_outcome, words_of

from launchopt.devices import find_device

GOLDEN = ROOT / "tests/golden/errors.txt"

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2023-11-16 18:17:03.9799600,4,2\n"
INPUTS = {
    "file": "a regular file, in the way\n",
    "empty.csv": "",
    "header.csv": HEADER,
    "malformed.csv": HEADER + ROW + "yesterday,4,2\n",
    "other.csv": "a,b\n1,2\n",
    "two_rows.csv": HEADER + ROW + ROW,
    "promptless.csv": "arrival_ms,prompt_tokens,output_tokens\n0,0,2\n",
    "waits.csv": "arrival_ms,prompt_tokens,output_tokens,after\n0,4,2,\n1,4,2,0\n",
    "circle.csv": "arrival_ms,prompt_tokens,output_tokens,after\n0,4,2,1\n1,4,2,0\n",
}

REPLAY = "arrival=replay workload=decode model=tiny"
DECODE = "workload=decode model=tiny"
# What is typed (`device=cpu` is added where no device is named), and what the message must hold.
CASES: dict[str, str] = {
    # names
    "workload=nope": "workload=nope gemv_micro decode",
    "mode=nope": "mode=nope baseline batched",
    "device=nope": "device=nope auto cpu cuda",
    "sampling=nope": "sampling=nope none greedy top_k top_p",
    "scheduler=nope": "scheduler=nope none continuous",
    "arrival=nope": "arrival=nope closed constant poisson bursty replay",
    "model=nope": "model=nope tiny qwen3_8b",
    "workload=trace workload.path=": "workload.path= must name a file",
    "workload=list workload.path=": "workload.path= must name a file",
    "workload=moe model=tiny_moe workload.routing=replay workload.ids=": "workload.ids= must name a file",
    f"{REPLAY} arrival.path=": "arrival.path= must name a file",
    "workload=": "workload gemv_micro",
    "mode.name=nope": "mode=nope baseline batched",
    "batching.bogus=1": "batching.bogus",
    "bogus=1": "bogus",
    "workload.tokens=4": "workload.tokens",
    "+mode.bogus=1": "mode.bogus=1 name",
    "+workload.bogus=7": "workload.bogus=7 commands",
    "+bogus=1": "bogus=1 workload repeats",
    # types
    "batching.max_batch=many": "batching.max_batch many",
    "batching.max_batch=[1]": "batching.max_batch [1]",
    "workload.dtype=fp8": "workload.dtype fp8 fp32 fp16 bf16",
    "repeats=1.5": "repeats=1.5 whole number auto",
    "repeats=true": "repeats=true whole number auto",
    "repeats=[auto]": "repeats=[auto] whole number auto",
    "repeats=often": "repeats=often whole number auto",
    "against={a:b}": "against= not a list of modes",
    "ordering=sideways": "ordering sideways none per_request violated",
    "batching.stall=perhaps": "batching.stall perhaps",
    "record.tokens=some": "record.tokens some all none",
    "mode=graph mode.fuse=norm": "mode.fuse=norm lists mode.fuse=[norm]",
    "mode=graph mode.fuse=[norm,attentoin]": "mode.fuse=attentoin attention",
    "mode=graph mode.fuse=[norm,norm]": "mode.fuse=norm twice",
    "mode=graph mode.submit=raph": "mode.submit=raph graph",
    "mode=graph mode.pdl=early": "mode.pdl=early true false",
    "tuning=some": "tuning some all none",
    # stacks
    f"{DECODE} mode=graph mode.fuse=[silu]": "mode=graph+silu mode.kernels=own",
    f"{DECODE} mode=graph mode.kernels=triton": "mode=graph+triton bias",
    f"{DECODE} mode=graph mode.submit=megakernel": "mode=graph+megakernel mode=megakernel",
    f"{DECODE} mode=batched mode.coalesce=true": "mode=batched+coalesce coalesced",
    f"{DECODE} mode=graph mode.fuse=[norm]": "mode=graph+norm mode.fuse=norm",
    f"{DECODE} mode=graph mode.pdl=true": "mode=graph+pdl GPU",
    "mode=graph mode.coalesce=false": "mode=graph-coalesce steps",
    f"{DECODE} mode=graph against=[graph+nrom]": "against=graph+nrom graph+norm",
    f"{DECODE} mode=graph against=[engine,engine]": "against=engine twice",
    f"{DECODE} mode=graph against=[engine+silu]": "against=engine+silu mode.kernels=own",
    # ranges
    "workload.commands=0": "workload.commands=0 from 1",
    "workload.commands=-5": "workload.commands=-5 from 1",
    "workload.commands=3000000000": "workload.commands=3000000000 2147483647",
    "workload.m=0": "workload.m=0 from 1",
    "workload.n=-1": "workload.n=-1 from 1",
    "workload.k=-1": "workload.k=-1 from 1",
    "workload.replicas=0": "workload.replicas=0 from 1",
    "workload=decode workload.tokens=0": "workload.tokens=0 from 1",
    "workload=decode workload.users=0": "workload.users=0 from 1",
    "workload=decode workload.requests=0": "workload.requests=0 from 1",
    "workload=decode workload.prompt_tokens=-1": "workload.prompt_tokens=-1 from 0",
    "workload=decode workload.layers=-1": "workload.layers=-1 from 1",
    "workload=decode model.hidden=0": "model.hidden=0 from 1",
    "workload=decode model.vocab=0": "model.vocab=0 from 1",
    "workload=prefill workload.tokens=-1": "workload.tokens=-1 from 1",
    "workload=prefill workload.prompts=0": "workload.prompts=0 from 1",
    "workload=prefill workload.layers=0": "workload.layers=0 from 1",
    "repeats=0": "repeats=0 from 1",
    "repeats=-1": "repeats=-1 from 1",
    "repeats=10001": "repeats=10001 to 10000 auto",
    "repeats=auto repeats_limit_s=0": "repeats_limit_s=0.0 above 0",
    "repeats_limit_s=nan": "repeats_limit_s=nan above 0",
    "job_timeout_s=0": "job_timeout_s=0.0 above 0",
    "job_timeout_s=nan": "job_timeout_s=nan above 0",
    "job_timeout_s=soon": "job_timeout_s soon",
    "resume=perhaps": "resume perhaps",
    "resume=true": "resume=true hydra.run.dir",
    "-m resume=true repeats=1,2": "resume=true no sweep hydra.sweep.dir",
    "-m batching.max_batch=many,4": "batching.max_batch many",
    "seed=-1": "seed=-1 from 0",
    "verify_columns=1": "verify_columns=1 from 2",
    "verify=most": "verify most full",
    "verify_budget_s=0": "verify_budget_s=0.0 above 0",
    "device.threads=0": "device.threads=0 from 1",
    "device.pin_cpu=100000": "device.pin_cpu=100000 cores",
    "timing.sample_every=0": "timing.sample_every=0 from 1",
    "queue.capacity=1000": "queue.capacity=1000 power of two",
    "queue.capacity=-2": "queue.capacity=-2 from 2",
    "queue.spin_us=nan": "queue.spin_us=nan from 0",
    "queue.sleep_us=inf": "queue.sleep_us=inf from 1",
    "batching.max_batch=0": "batching.max_batch=0 from 1",
    "batching.max_batch=-64": "batching.max_batch=-64 from 1",
    "batching.max_batch=8192": "batching.max_batch=8192 queue.capacity 4096",
    "batching.timeout_us=-1": "batching.timeout_us=-1.0 from 0",
    "batching.timeout_us=nan": "batching.timeout_us=nan from 0",
    "batching.timeout_us=inf": "batching.timeout_us=inf from 0",
    "batching.idle_us=nan": "batching.idle_us=nan from 0",
    "batching.idle_us=-inf": "batching.idle_us=-inf from 0",
    "arrival=poisson": "arrival.rate_per_s required",
    "arrival=constant arrival.rate_per_s=0": "arrival.rate_per_s=0.0 above 0",
    "arrival=poisson arrival.rate_per_s=nan": "arrival.rate_per_s=nan above 0",
    "arrival=bursty arrival.rate_per_s=9 arrival.burst_size=0": "arrival.burst_size=0 from 1",
    "arrival=bursty arrival.rate_per_s=9 arrival.peak_per_s=8": "arrival.peak_per_s=8.0 at least 9",
    "arrival=poisson arrival.rate_per_s=1e-300": "arrival.rate_per_s=1e-300",
    f"{DECODE} sampling=top_k sampling.top_k=0": "sampling.top_k=0 from 1",
    f"{DECODE} sampling=top_p sampling.top_p=0": "sampling.top_p=0.0 above 0",
    f"{DECODE} sampling=top_p sampling.top_p=1.5": "sampling.top_p=1.5 to 1",
    f"{DECODE} sampling=top_p sampling.temperature=0": "sampling.temperature=0.0 above 0",
    f"{DECODE} scheduler=continuous scheduler.chunk_tokens=0": "scheduler.chunk_tokens=0 from 1",
    f"{DECODE} scheduler=continuous scheduler.max_running=0": "scheduler.max_running=0 from 1",
    f"{DECODE} scheduler=continuous scheduler.budget_tokens=511": "scheduler.budget_tokens=511 chunk_tokens=512",
    f"{DECODE} slo.ttft_ms=0": "slo.ttft_ms=0.0 above 0",
    # what must fit together
    "ordering=violated": "ordering=violated gemv_micro decode prefill",
    "sampling=greedy": "sampling=greedy gemv_micro decode prefill",
    "scheduler=continuous": "scheduler=continuous gemv_micro decode prefill",
    f"{DECODE} mode=graph scheduler=continuous scheduler.ahead=true": "scheduler.ahead=true scheduler=none",
    "mode=graph_loop": "mode=graph_loop takes whole steps independent",
    f"{DECODE} mode=graph_loop mode.tokens=0": "mode.tokens=0 from 1 4096",
    f"{DECODE} mode=batched scheduler.ahead=true": "scheduler.ahead=true mode=batched batches coalesced graph",
    f"{DECODE} ordering=none scheduler.ahead=true": "scheduler.ahead=true ordering=none per_request",
    "scheduler.ahead=true": "scheduler.ahead=true gemv_micro decode prefill",
    "slo.ttft_ms=5": "slo.ttft_ms=5.0 gemv_micro decode prefill",
    "record.tokens=all": "record.tokens=all gemv_micro decode prefill",
    f"{DECODE} ordering=none sampling=greedy": "sampling=greedy ordering=none per_request",
    f"{DECODE} ordering=none scheduler=continuous": "scheduler=continuous ordering=none per_request",
    f"{DECODE} ordering=none record.tokens=all": "record.tokens=all ordering=none per_request",
    f"{DECODE} ordering=none arrival=poisson arrival.rate_per_s=5": "arrival=poisson ordering=per_request",
    f"{DECODE} workload.users=2": "workload.users=2 ordering=none workload.requests",
    f"{DECODE} sampling.where=cpu": "sampling.where=cpu greedy top_k top_p",
    f"{DECODE} sampling=greedy sampling.where=gpu": "sampling.where=gpu CPU",
    f"{DECODE} sampling=greedy model.vocab=2000000000": "model.vocab=2000000000 from 1 to 2097151",
    "workload=decode sampling=greedy": "sampling=greedy small_1024 model.vocab",
    "model=qwen3_8b": "model=qwen3_8b gemv_micro decode prefill",
    "workload=decode workload.layers=9": "workload.layers=9 at most 8 small_1024",
    "workload=layer ordering=none": "ordering=none workload=layer per_request",
    "workload=layer workload.page_tokens=0": "workload.page_tokens=0 from 1",
    "workload=layer workload.kv=ring": "workload.kv ring contiguous paged",
    "workload=layer workload.layers=9": "workload.layers=9 at most 8 small_1024",
    "workload=layer model=tiny model.kv_heads=3": "model.q_heads=4 kv_heads=3",
    "workload=qkv model=tiny": "model=k 32 features fp32 256 bytes",
    "workload=qkv workload.requests=0": "workload.requests=0 from 1",
    "workload=linear_epilogue model=tiny": "model=tiny workload=linear_epilogue workload.hidden",
    "workload=elementwise_chain workload.hidden=0": "workload.hidden=0 from 1",
    "workload=elementwise_chain sampling=greedy": "sampling=greedy vocabulary",
    "against=[nonsense]": "against=nonsense baseline",
    "against=[batched]": "against=batched baseline",
    # modes
    "mode=multistream mode.streams=3": "mode.streams=3 power of two",
    "mode=graph mode.cached=0": "mode.cached=0 from 1",
    "mode.streams=4": "mode.streams",
    "mode=multistream": "mode=multistream GPU cpu",
    f"mode=fused_qkv {DECODE}": "mode=fused_qkv q, k and v",
    "mode=coalesced": "mode=coalesced share a weight",
    "against=[all,baseline]": "against=all",
    "against=[pdl]": "against=pdl GPU",
    f"mode=graph ordering=violated workload.requests=2 {DECODE}": "mode=graph order to break",
    "timing=cupti": "timing=cupti CPU",
    # traces
    REPLAY: "arrival.path required",
    "arrival=replay arrival.path=two_rows.csv": "arrival=replay gemv_micro decode",
    f"{REPLAY} arrival.path=missing.csv": "missing.csv No such file",
    f"{REPLAY} arrival.path=empty.csv": "empty.csv is empty azure mooncake csv TIMESTAMP",
    f"{REPLAY} arrival.path=header.csv": "header.csv no requests",
    f"{REPLAY} arrival.path=malformed.csv arrival.requests=null": "malformed.csv:3 yesterday",
    f"{REPLAY} arrival.path=other.csv": "other.csv azure mooncake csv TIMESTAMP",
    f"{REPLAY} arrival.path=other.csv arrival.format=azure": "other.csv:1 TIMESTAMP,ContextTokens,GeneratedTokens",
    f"{REPLAY} arrival.path=two_rows.csv arrival.format=mooncake": "two_rows.csv:1 JSON",
    f"{REPLAY} arrival.path=two_rows.csv arrival.format=yaml": "arrival.format yaml azure mooncake csv",
    f"{REPLAY} arrival.path=circle.csv arrival.requests=2": "circle.csv:2 request 0 waits 1",
    f"{REPLAY} arrival.path=waits.csv arrival.requests=2 ordering=none": "ordering=none waits.csv per_request",
    "workload=prefill model=tiny arrival=replay arrival.path=promptless.csv": "workload=prefill promptless.csv prompt",
    f"{REPLAY} arrival.path=two_rows.csv arrival.requests=20": "two_rows.csv 20 2",
    f"{REPLAY} arrival.path=two_rows.csv arrival.requests=0": "arrival.requests=0 from 1",
    f"{REPLAY} arrival.path=two_rows.csv arrival.speed=0": "arrival.speed=0.0 above 0",
    f"{REPLAY} arrival.path=two_rows.csv arrival.speed=nan": "arrival.speed=nan above 0",
    f"{REPLAY} arrival.path=two_rows.csv arrival.speed=inf": "arrival.speed=inf above 0",
    # what Hydra would take, or stumble over
    "workload=null": "workload=null",
    "=1": "=1",
    "workload=../model/tiny": "workload outside folder",
    "table={a:b}": "table={a:b}: an option, not a section",
    "workload.commands=${oc.env:NO_SUCH_NAME}": "workload.commands=${oc.env:NO_SUCH_NAME}: NO_SUCH_NAME",
    "workload.commands=${workload.commands}": "workload.commands=${workload.commands}: Recursive",
    "slo=${now:%Y}": "slo=${now:%Y}: a section, not a value",
    "slo=${mode}": "slo=${mode}: a section, not a value",
    "batching=${now:%Y}": "batching=${now:%Y}: a section, not a value",
    "mode.fuse=${workload.name}": "mode.fuse=${workload.name}: not a list",
    "hydra.run.dir=${bogus}": "bogus hydra.run.dir",
    "+table={_target_:os.system,command:id}": "table _target_",
    "+hydra.callbacks.x._target_=os.system": "hydra.callbacks.x._target_=os.system",
    "--experimental-rerun=file": "--experimental-rerun=file pickle",
    f"seed={'9' * 1000}": "seed=999 2147483647",
    "-m seed=range(0,1000000000)": "seed=range(0,1000000000) 100,000 jobs",
    # the machine
    "device=cuda": "device=cuda",
    "workload.commands=2000000000": "2000000000 GB main memory workload.commands",
    "workload.m=2000000000 workload.k=2000000000": "GB main memory",
    "workload=decode workload.requests=2147483647": "GB main memory workload.requests",
    "workload=prefill workload.prompts=2147483647 ordering=none": "GB main memory workload.prompts",
    "workload.replicas=2000000000 workload.shuffle=true workload.m=1 workload.k=1": "GB main memory",
    "workload=decode model.layers=2147483647": "model.layers=2147483647 1024",
    "arrival=bursty arrival.rate_per_s=9 arrival.burst_size=2147483647": "arrival.burst_size=2147483647 1048576",
    "workload=decode model=llama_3_70b workload.layers=80 workload.replicas=100": "GB workload.layers",
    "hydra.run.dir=file": "hydra.run.dir=file not a folder",
    "hydra.run.dir=file/below/it": "hydra.run.dir=file/below/it not a folder",
    "-m hydra.sweep.dir=file/x repeats=1,2": "hydra.sweep.dir=file/x not a folder",
}


def has_gpu() -> bool:
    return find_device("auto", 0)[0].kind == "cuda"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Every case's outcome."""
    return forked_outcomes(CASES, INPUTS, tmp_path_factory.mktemp("bad"))


@pytest.mark.parametrize("case", CASES)
def test_refused_at_once_in_few_words_with_nothing_left(case: str, outcomes: dict[str, Outcome]) -> None:
    if case == "device=cuda" and has_gpu():
        pytest.skip("this machine has a GPU")
    assert_refused(outcomes[case], CASES[case])


@pytest.mark.parametrize(
    "case", ["mode=nope", "+hydra.callbacks.x._target_=os.system", "workload.commands=2000000000", "hydra.run.dir=file"]
)
def test_who_types_it_is_told_the_same(case: str, outcomes: dict[str, Outcome], tmp_path: Path) -> None:
    typed, forked = typed_outcome(case, INPUTS, tmp_path / "typed"), outcomes[case]
    assert normalised(typed.stderr) == normalised(forked.stderr)
    assert (typed.exit_code, typed.stdout, typed.left) == (forked.exit_code, forked.stdout, forked.left)


def normalised(stderr: str) -> str:
    """The message, less what depends on the machine."""
    text = stderr.replace(str(ROOT), "CHECKOUT")
    text = re.sub(r"[\d.]+ GB", "N GB", text)
    text = re.sub(r"device=cuda: .*", "device=cuda: WHY", text)
    return re.sub(r"this process's cores: .*", "this process's cores: [N]", text)


def test_messages(outcomes: dict[str, Outcome]) -> None:
    entries = {
        case: f"$ python -m runner {' '.join(words_of(case))}\nexit {outcome.exit_code}\n{normalised(outcome.stderr)}\n"
        for case, outcome in outcomes.items()
    }
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text("".join(entries.values()))
    golden = GOLDEN.read_text()
    if has_gpu():
        cuda = "$ python -m runner device=cuda\n"
        golden = re.sub(re.escape(cuda) + r"(?:.+\n)+\n", "", golden)
        del entries["device=cuda"]
    assert "".join(entries.values()) == golden
