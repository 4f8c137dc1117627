"""Bad input about requests: refused in seconds, in one line that names it, with nothing left behind.

What is bad about one setting alone is in test_bad_input.py.
"""

import pytest
from support.processes.refusals import Outcome, assert_refused, forked_outcomes

OWN = "arrival_ms,prompt_tokens,output_tokens"
AFTER = f"{OWN},after"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
INPUTS = {
    "itself.csv": f"{AFTER}\n0,4,2,\n1,4,2,1\n",
    "cycle.csv": f"{AFTER}\n0,4,2,\n1,4,2,3\n2,4,2,1\n3,4,2,2\n4,4,2,0\n",
    "missing_step.csv": f"{AFTER}\n0,4,2,\n1,4,2,7\n",
    "cut.csv": f"{AFTER}\n0,4,2,1\n1,4,2,\n",
    "negative_after.csv": f"{AFTER}\n0,4,2,-1\n",
    "back_in_time.csv": f"{OWN}\n5,4,2\n4.5,4,2\n",
    "negative.csv": f"{OWN}\n-1,4,2\n",
    "not_a_number.csv": f"{OWN}\nnan,4,2\n",
    "nothing_to_do.csv": f"{OWN}\n0,0,0\n",
    "no_prompt.csv": f"{OWN}\n0,4,2\n1,0,2\n",
    "three_of_four.csv": f"{AFTER}\n0,4,2\n",
    "azure_back.csv": f"{AZURE}\n2023-11-16 18:17:04.0,4,2\n2023-11-16 18:17:03.0,4,2\n",
    "back.jsonl": '{"timestamp": 5, "input_length": 4, "output_length": 2}\n'
    '{"timestamp": 4, "input_length": 4, "output_length": 2}\n',
    "lacks.jsonl": '{"timestamp": 5, "input_length": 4}\n',
    "good.csv": f"{OWN}\n0,40,2\n1,40,2\n",
    "no_ids.jsonl": '{"timestamp": 5, "input_length": 40, "output_length": 2}\n',
}

DECODE = "workload=decode model=tiny"
REPLAY = f"{DECODE} arrival=replay arrival.path="
GREEDY = f"{DECODE} sampling=greedy"
KINDLESS = f"{DECODE} workload.tokens=1 workload.layers=1 workload.replicas=1"  # small: it may yet run
PAGED = "workload=layer model=tiny workload.kv=paged workload.requests=3"
ALIKE = "workload.prompt_tokens=40 workload.shared_prefix=33"
PREFIXES = f"{PAGED} {ALIKE} scheduler=continuous scheduler.prefixes=hash"
OF_TRACE = f"{PAGED} scheduler=continuous scheduler.prefixes=hash arrival=replay"
RATE = "arrival=poisson arrival.rate_per_s"
# As in test_bad_input.CASES.
CASES: dict[str, str] = {
    # who waits for whom
    f"{REPLAY}itself.csv": "itself.csv:3 request 1 waits for itself",
    f"{REPLAY}cycle.csv": "cycle.csv:3 request 1 request 3 cycle of 3",
    f"{REPLAY}missing_step.csv": "missing_step.csv:3 request 1 request 7 missing",
    f"{REPLAY}cut.csv arrival.requests=1": "cut.csv:2 request 0 request 1 missing (requests: 1)",
    f"{REPLAY}negative_after.csv": "negative_after.csv:2 after -1",
    # order and content of arrivals
    f"{REPLAY}back_in_time.csv": "back_in_time.csv:3 before",
    f"{REPLAY}azure_back.csv": "azure_back.csv:3 before",
    f"{REPLAY}back.jsonl": "back.jsonl:2 before",
    f"{REPLAY}lacks.jsonl": "lacks.jsonl:1 output_length",
    f"{REPLAY}negative.csv": "negative.csv:2 arrival_ms -1",
    f"{REPLAY}not_a_number.csv": "not_a_number.csv:2 arrival_ms nan",
    f"{REPLAY}nothing_to_do.csv": "nothing_to_do.csv:2 without tokens",
    f"{REPLAY}three_of_four.csv": "three_of_four.csv:2 3 4",
    f"{REPLAY}itself.csv arrival.format=azure": f"itself.csv:1 header {AZURE}",
    f"{REPLAY}no_prompt.csv workload=prefill": "workload=prefill no_prompt.csv no prompt",
    f"{REPLAY}no_prompt.csv arrival.speed=-1": "arrival.speed=-1.0 above 0",
    # rates
    f"{RATE}=-5": "arrival.rate_per_s=-5.0 above 0",
    f"{RATE}=0": "arrival.rate_per_s=0.0 above 0",
    f"{RATE}=inf": "arrival.rate_per_s=inf",
    f"{RATE}=-inf {DECODE}": "arrival.rate_per_s=-inf",
    f"{RATE}=often": "arrival.rate_per_s often",
    f"{DECODE} arrival=constant arrival.rate_per_s=nan": "arrival.rate_per_s=nan",
    f"{DECODE} workload.requests=2 arrival=constant arrival.rate_per_s=1e-12": "arrival.rate_per_s=1e-12 146",
    f"{DECODE} arrival=bursty arrival.rate_per_s=-1": "arrival.rate_per_s=-1.0 above 0",
    f"{DECODE} arrival=bursty arrival.rate_per_s=9 arrival.peak_per_s=8.5": "arrival.peak_per_s=8.5 rate_per_s=9.0",
    f"{DECODE} arrival=bursty arrival.rate_per_s=9 arrival.peak_per_s=inf": "arrival.peak_per_s=inf",
    f"{DECODE} arrival=bursty arrival.rate_per_s=9 arrival.burst_size=-1": "arrival.burst_size=-1 from 1",
    f"{DECODE} arrival.rate_per_s=9": "arrival.rate_per_s",
    # objectives
    "slo.tpot_ms=5": "slo.tpot_ms=5.0 workload=gemv_micro tokens",
    f"{DECODE} ordering=none slo.ttft_ms=5": "slo.ttft_ms=5.0 ordering=none per_request",
    f"{DECODE} ordering=none slo.tpot_ms=5": "slo.tpot_ms=5.0 ordering=none per_request",
    f"{DECODE} slo.tpot_ms=-1": "slo.tpot_ms=-1.0 above 0",
    f"{DECODE} slo.ttft_ms=nan": "slo.ttft_ms=nan",
    f"{DECODE} slo.ttft_ms=soon": "slo.ttft_ms soon",
    # sampling
    "workload=decode model=small_1024 sampling=top_p": "sampling=top_p model=small_1024 model.vocab",
    "workload=gemv_256 sampling=top_k": "sampling=top_k workload=gemv_256",
    f"{GREEDY} sampling.where=gpu": "sampling.where=gpu CPU auto",
    f"{GREEDY} sampling.where=moon": "sampling.where moon auto cpu gpu",
    f"{DECODE} sampling=top_p sampling.top_p=0": "sampling.top_p=0.0 above 0",
    f"{DECODE} sampling=top_p sampling.top_p=2": "sampling.top_p=2.0 1",
    f"{DECODE} sampling=top_p sampling.top_p=nan": "sampling.top_p=nan",
    f"{DECODE} sampling=top_k sampling.temperature=0": "sampling.temperature=0.0 above 0",
    f"{DECODE} sampling=top_k sampling.temperature=inf": "sampling.temperature=inf",
    f"{DECODE} sampling=top_k sampling.top_k=-1": "sampling.top_k=-1 from 1",
    f"{DECODE} sampling=beam": "sampling=beam greedy top_k top_p",
    f"{GREEDY} model.vocab=2097152": "vocab=2097152 2097151",
    # scheduling
    f"{DECODE} scheduler=fifo": "scheduler=fifo continuous",
    f"{KINDLESS} scheduler.kind=fifo": "scheduler.kind=fifo",
    f"{KINDLESS} arrival=constant arrival.rate_per_s=500 arrival.kind=nope": "arrival.kind=nope",
    f"{KINDLESS} arrival=constant arrival.rate_per_s=500 arrival.kind=bursty": "arrival.kind=bursty",
    f"{KINDLESS} arrival.kind=poisson": "arrival.kind=poisson",
    f"{DECODE} scheduler=continuous scheduler.chunk_tokens=64 scheduler.budget_tokens=63": "budget_tokens=63",
    f"{DECODE} scheduler=continuous scheduler.budget_tokens=0": "scheduler.budget_tokens=0 from 1",
    f"{DECODE} scheduler=continuous scheduler.max_running=-1": "scheduler.max_running=-1 from 1",
    # shared prefixes
    f"{PAGED} scheduler.prefixes=hash": "scheduler.prefixes=hash scheduler=continuous",
    f"{PAGED} scheduler=continuous scheduler.prefixes=tree": "scheduler.prefixes tree none hash radix",
    f"{PAGED} scheduler=continuous scheduler.prefix_blocks=9": "prefix_blocks=9 scheduler.prefixes=hash radix",
    f"{PREFIXES} scheduler.prefix_blocks=0": "scheduler.prefix_blocks=0 from 1",
    f"{PREFIXES} workload.kv=contiguous": "scheduler.prefixes=hash workload=layer workload.kv=paged",
    f"{DECODE} scheduler=continuous scheduler.prefixes=hash": "scheduler.prefixes=hash workload.kv=paged",
    f"{PREFIXES} workload.shared_prefix=0": "scheduler.prefixes=hash workload.shared_prefix Mooncake",
    f"{PREFIXES} workload.shared_prefix=-1": "workload.shared_prefix=-1 from 0",
    f"{PREFIXES} workload.shared_prefix=15": "workload.shared_prefix=15 at least workload.page_tokens 16",
    f"{PREFIXES} scheduler.prefix_blocks=2": "scheduler.prefix_blocks=2 no request fits at least",
    f"{PREFIXES} workload.shared_prefix=41": "workload.shared_prefix=41 workload.prompt_tokens 40",
    f"{PAGED} device.routing=prefix": "device.routing=prefix scheduler.prefixes=hash",
    f"{DECODE} device.routing=least_outstanding": "device.routing=least_outstanding device.gpus=[0,1]",
    f"{OF_TRACE} arrival.path=good.csv": "scheduler.prefixes=hash hash_ids good.csv Mooncake",
    f"{OF_TRACE} arrival.path=no_ids.jsonl": "no_ids.jsonl:1 hash_ids missing",
    f"{OF_TRACE} arrival.path=good.csv {ALIKE}": "workload.shared_prefix=33 good.csv",
    # order
    f"{DECODE} workload.users=4": "workload.users=4 ordering=none workload.requests",
    "workload=gemv_256 ordering=violated": "ordering=violated workload=gemv_256",
    f"{DECODE} ordering=none arrival=bursty arrival.rate_per_s=5": "arrival=bursty ordering=per_request",
    f"{DECODE} workload.requests=0": "workload.requests=0 from 1",
    f"{DECODE} workload.requests=-3": "workload.requests=-3 from 1",
    f"{DECODE} workload.prompt_tokens=1000000000": "GB",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Every case's outcome."""
    return forked_outcomes(CASES, INPUTS, tmp_path_factory.mktemp("bad_requests"))


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_in_a_few_words(case: str, outcomes: dict[str, Outcome]) -> None:
    assert_refused(outcomes[case], CASES[case])
