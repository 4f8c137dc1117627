"""What a cache of prompt prefixes would hit in a trace of requests, and what it costs the host.

    launchopt prefixes conversation_trace.jsonl                             as many blocks as needed
    launchopt prefixes conversation_trace.jsonl --model llama_3_8b --memory-gib 40
    launchopt prefixes conversation_trace.jsonl --block 512 --blocks 20000 --requests 1000

In: a Mooncake trace, whose hash_ids say which blocks of prompts are the same. Out: a table with a column for each way
to find blocks, a hash table and a radix tree, in Markdown if the output is no terminal; with --json the same as JSON.
The key of a block is the SHA-256 hash of all tokens up to its end. Requests run one after another. Blocks that were
used longest ago make room.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from launchopt.errors import ConfigError
from runner.ending import end
from runner.output_names import STDOUT
from runner.reading import CommandParser, add_json, exit_code, positive, put_json, whole_number
from runner.screen.pager import console, drawn

if TYPE_CHECKING:
    from launchopt.prefixes.cache import PrefixCache
    from launchopt.prefixes.simulation import Hits, Simulation

MOST_BLOCK = 1 << 16
MOST_BLOCKS = 1 << 40
MOST_GIB = 1 << 20
MOST_REQUESTS = 1 << 31
BYTES = 2  # of an element of the cache: fp16 or bf16


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    options = _parser().parsed(argv)
    return exit_code(lambda: _prefixes(options))


def _prefixes(options: argparse.Namespace) -> int:
    from launchopt.arrivals.mooncake import HASH_BLOCK, read_prompts
    from launchopt.prefixes.hash_cache import HashCache
    from launchopt.prefixes.radix_cache import RadixCache
    from launchopt.prefixes.simulation import oracle, simulate

    capacity = _capacity(options)
    memory = f", {options.memory_gib:g} GiB" if options.memory_gib else ""
    prompts = read_prompts(options.trace, options.requests)
    kinds: Sequence[Callable[[int | None], PrefixCache]] = (HashCache, RadixCache)
    found = simulate(prompts, [kind(capacity) for kind in kinds], options.block)
    hits, blocks = oracle(prompts)
    implied = hits / blocks if blocks else 0.0
    if options.json != STDOUT:
        _show(found, options.block, capacity, memory)
        print(f"By hash_ids, with all memory and blocks of {HASH_BLOCK} tokens: {implied:.2%} of blocks ({hits:,}).")
    about = {"block": options.block, "blocks": capacity, "hash_ids_rate": implied, "hash_ids_hits": hits}
    about |= {"requests": found.requests, "tokens": found.tokens, "full_blocks": found.blocks, "hash_ns": found.hash_ns}
    each_cache = [{"cache": name, **asdict(each), "rate": found.rate(each.hits)} for name, each in found.of.items()]
    put_json(options.json, about | {"caches": each_cache})
    return 0


def _capacity(options: argparse.Namespace) -> int | None:
    """Return how many blocks there are; None: as many as needed. ConfigError for options that do not go together."""
    if options.memory_gib is None:
        if options.model is not None:
            raise ConfigError("--model", options.model, "says how large a block is: add --memory-gib N")
        return int(options.blocks) if options.blocks else None
    if options.blocks or options.model is None:
        wanted = "leave --blocks out" if options.blocks else "add --model NAME, which says how large a block is"
        raise ConfigError("--memory-gib", options.memory_gib, wanted)
    if options.memory_gib > MOST_GIB:
        raise ConfigError("--memory-gib", options.memory_gib, f"must be at most {MOST_GIB}")
    from runner.budget import read_model

    model = read_model(options.model)
    token_bytes = model.cache_features * model.layers * BYTES
    if blocks := int(options.memory_gib * 2**30 / (token_bytes * options.block)):
        return blocks
    raise ConfigError("--memory-gib", options.memory_gib, f"holds no block of {options.block} tokens of {model.name}")


def _show(found: Simulation, block: int, capacity: int | None, memory: str) -> None:
    from launchopt.analysis.tables.columns import FULL, Column
    from launchopt.analysis.tables.markdown import body

    size = "as many as needed" if capacity is None else f"{capacity:,} of them{memory}"
    title = f"{found.requests:,} requests, {found.tokens:,} tokens of prompts, blocks of {block} tokens, {size}"
    columns: list[Column[str]] = [Column(name, str, FULL, not name) for name in ("", *found.of)]
    rows: dict[str, Callable[[Hits], str]] = {
        "full blocks of prompts that were cached": lambda each: f"{found.rate(each.hits):.2%}",
        "tokens of prompts that need no step": lambda each: f"{each.cached_tokens / max(1, found.tokens):.2%}",
        "blocks evicted": lambda each: f"{each.evicted:,}",
        "last blocks copied on write": lambda each: f"{each.copies:,}",
        "requests larger than the cache": lambda each: f"{each.refused:,}",
        "host ns a token, without the hash": lambda each: f"{found.ns_a_token(each.ns):.1f}",
    }
    cells = [[name, *map(of, found.of.values())] for name, of in rows.items()]
    if sys.stdout.isatty():
        console().print(title)
        console().print(drawn(columns, cells))
    else:
        print(title, body(columns, cells), sep="\n\n")
    print(f"\nThe hash takes {found.ns_a_token(found.hash_ns):.1f} ns of the host a token.")


def _parser() -> CommandParser:
    parser = CommandParser("prefixes", __doc__)
    parser.add_argument("trace", type=Path, metavar="TRACE.jsonl", help="a Mooncake trace with hash_ids")
    parser.add_argument(
        "--block", type=whole_number(1, MOST_BLOCK), default=16, metavar="N", help="tokens of a block; default 16"
    )
    parser.add_argument(
        "--blocks", type=whole_number(1, MOST_BLOCKS), metavar="N", help="blocks of the cache; default: all needed"
    )
    parser.add_argument("--memory-gib", type=positive, metavar="N", help="memory of the cache, in fp16; needs --model")
    parser.add_argument("--model", metavar="NAME", help="model of --memory-gib: of conf/model, or a config.json")
    parser.add_argument(
        "--requests", type=whole_number(1, MOST_REQUESTS), metavar="N", help="the first N only; default: all"
    )
    add_json(parser)
    return parser


if __name__ == "__main__":
    end(main)
