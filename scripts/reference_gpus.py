"""The parts of the reference results that need two GPUs of one host: what two gain over one.

A part measures on one GPU, on two, and on one again. Steps have 16 requests a GPU, so that each GPU does the same work.
"""

from __future__ import annotations

from scripts.reference_part import Part, run_words

GPUS = "gpus"  # the folder of the parts
BEFORE, TWO, BEHIND = "one_before", "two", "one_behind"
DECODE = (
    "workload=layer model=llama_3_2_1b workload.dtype=bf16 workload.layers=null workload.tokens=100 sampling=greedy"
    " timing=host scheduler.ahead=true mode=engine mode.submit=graph mode.kernels=own mode.pdl=true"
    " 'mode.fuse=[qkv,gate_up,norm,rope_kv,attention,silu,epilogue]' 'against=[]' batching.max_batch=64"
    " batching.timeout_us=50000 repeats=3 processes=3 verify_budget_s=2 record.launches=none"
)
GEMVS = (
    "workload=gemv_micro workload.commands=1000000 mode=batched 'against=[]' timing=host repeats=3 processes=3"
    " batching.max_batch=512 record.launches=none"
)
JOBS, SWEEP = 12, "workload=gemv_micro mode=batched 'against=[baseline]' repeats=40 record.launches=none"


def _pair(name: str, words: str, one: str, two: str, seconds: int) -> Part:
    """Return a part that runs `words` with `one` before and behind `two`."""
    runs = ((BEFORE, one), (TWO, two), (BEHIND, one))
    commands = [run_words(f"{words} {more}", f"{{folder}}/{place}") for place, more in runs]
    return Part(f"{GPUS}/{name}", "cuda", 5, tuple(commands), seconds=seconds, gpus=2)


def _jobs(launcher: str) -> Part:
    seeds = ",".join(map(str, range(JOBS)))
    commands = [
        run_words(
            f"-m hydra/launcher={launcher} hydra.launcher.n_jobs={jobs} {SWEEP} seed={seeds}", f"{{folder}}/{place}"
        )
        for place, jobs in ((BEFORE, 1), (TWO, 2))
    ]
    return Part(f"{GPUS}/jobs_{launcher}", "cuda", 9, tuple(commands), seconds=360, gpus=2)


# Work, the rate that counts, and the goal for two GPUs over one.
GPU_ROWS = (
    ("decode", "Llama 3.2 1B, 16 requests a GPU", "tokens_per_s", 1.95),
    ("gemvs", "independent 64 x 8192 GEMVs", "commands_per_s", 1.95),
    ("jobs_joblib", f"{JOBS} jobs by joblib", "jobs/s", 1.8),
)
GPU_PARTS = (
    _pair("decode", DECODE, "workload.requests=16", "workload.requests=32 'device.gpus=[0,1]'", 240),
    _pair("gemvs", GEMVS, "'device.gpus=[0]'", "'device.gpus=[0,1]'", 120),
    _jobs("joblib"),
)
