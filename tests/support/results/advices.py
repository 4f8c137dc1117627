"""A small model, and an answer about it, for tests of launchopt advise."""

from __future__ import annotations

from pathlib import Path

from runner.advise.batching import Batching
from runner.advise.halving import Decision
from runner.advise.question import Question
from runner.advise.search import Found
from support.results.summary_rows import repeats

MODEL = {
    **{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"num_key_value_heads": 1, "intermediate_size": 128, "vocab_size": 256, "rms_norm_eps": 1e-5},
}

EXPERTS = {
    **{"model_type": "qwen3_moe", "decoder_sparse_step": 1, "head_dim": 16},
    **{"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}

# 1,100 and 1,300 tokens of prompts: two full blocks of 512 tokens each, the first one alike, and a part of a block.
CHAT = """\
{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 9, "input_length": 1300, "output_length": 5, "hash_ids": [0, 3, 4]}
"""


def found(question: Question, best: str = "engine+graph") -> Found:
    arms = {"engine": 10.0, best: 5.0}
    rows = {
        label: repeats(*[wall] * 5, mode=label, setup_ms=wall, layers=1, tpot_p50_ms=wall, tpot_p99_ms=wall)
        for label, wall in arms.items()
    }
    order, fits = [best, "engine"], frozenset([best])
    return Found(question, rows, "engine", order, fits, Decision.decided, Batching(16, 0.0, 6), 2, Path("nowhere"))
