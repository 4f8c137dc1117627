"""What prefix caching would save of a trace of requests: a line of the answer."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from launchopt.arrivals.lines import text_lines
from launchopt.arrivals.mooncake import HASH_BLOCK, LINE_BYTES_MAX, read_prompts
from launchopt.errors import DataError
from launchopt.prefixes.simulation import oracle

SWITCHES = (
    "set: vLLM --enable-prefix-caching; SGLang no --disable-radix-cache; "
    "TensorRT-LLM kv_cache_config={enable_block_reuse: true}"
)


def has_requests(path: Path) -> bool:
    """Return whether a file is a Mooncake trace: its first line is a request with hash_ids."""
    try:
        with closing(text_lines(path, LINE_BYTES_MAX)) as lines:
            _, text = next(lines, (0, "null"))
        request = json.loads(text)
    except (DataError, ValueError, RecursionError):
        return False
    return isinstance(request, dict) and "hash_ids" in request


def prefixes_line(path: Path) -> str:
    """Return how much of the prompts of a trace a cache has, if it evicts nothing. DataError for a wrong trace."""
    prompts = read_prompts(path)
    hits, blocks = oracle(prompts)
    tokens = sum(each.prompt for each in prompts)
    share, of_blocks = hits * HASH_BLOCK / max(1, tokens), hits / max(1, blocks)
    found = f"{share:.1%} of {tokens:,} prompt tokens ({of_blocks:.1%} of full blocks of {HASH_BLOCK})"
    return f"prefixes: a cache that evicts nothing has {found}, which need no step (trials have no prompts); {SWITCHES}"
