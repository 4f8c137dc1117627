"""Races between threads are found in every order in which the threads run; ordered accesses are no race."""

from __future__ import annotations

import re

import numpy as np
import pytest

from support.cuda_on_host import built_of, can_find_races, launch

pytestmark = pytest.mark.skipif(not can_find_races(), reason="needs g++ 11")

BEGIN = "IS(0) barrier_begin(full, 1); __syncthreads();"
FILL = "IS(0) { barrier_expect(full, 32); copy_bulk(slots, copied, 32, full); }"
WAIT, WAIT_AGAIN = "barrier_wait(full, 0);", "barrier_wait(full, 1);"
TAKE = "word[threadIdx.x] = load_shared(slots + LANE % 2 * 16).x;"
GIVE, HAVE = "IS(0) { word[99] = 1; store_release(flag, 1ull); }", "while (!load_acquire(flag)) {}"
SAY, HEAR = "store_relaxed((u64)flag, 1ull);", "while (!load_relaxed(flag)) {}"
OTHER = "word[threadIdx.x] = kept[threadIdx.x ^ 33];"
ALL = "while (load_acquire((u32*)flag) < 64) {}"
ORDERED = {
    "barrier": f"kept[threadIdx.x] = 1; __syncthreads(); {OTHER}",
    "barrier of some": "if (threadIdx.x < 32) kept[LANE] = 1; __barrier_sync_count(3, 64); word[threadIdx.x] = *kept;",
    "some ended": "if (threadIdx.x > 9) return; kept[threadIdx.x] = 1; __syncthreads(); word[threadIdx.x] = *kept;",
    "a warp": "kept[threadIdx.x] = 1; __syncwarp(); word[threadIdx.x] = kept[threadIdx.x ^ 1];",
    "two barriers": "IS(0) *kept = 1; __syncthreads(); word[threadIdx.x] = *kept; __syncthreads(); IS(9) *kept = 2;",
    "read by all": "word[threadIdx.x] = *(u32*)copied; word[threadIdx.x] += *(u32*)copied;",
    "release, acquire": f"{GIVE} IS(40) {{ {HAVE} word[99] = 2; }}",
    "fences": f"IS(0) {{ word[99] = 1; fence(); {SAY} }} IS(40) {{ {HEAR} fence(); word[99] = 2; }}",
    "one after the other": f"{GIVE} IS(40) {{ {HAVE} store_release(flag + 1, 1ull); }}"
    "IS(50) { while (!load_acquire(flag + 1)) {} word[99] = 2; }",
    "the last to count": "word[threadIdx.x] = 1; __threadfence(); if (atomicAdd(flag, 1ull) < 63) return;"
    "__threadfence(); for (int i = 0; i < 64; ++i) kept[0] += word[i];",
    "all have counted themselves": f"word[threadIdx.x] = 1; count_release((u32*)flag); {ALL}"
    "word[threadIdx.x ^ 33] = 2;",
    "atomics": "atomicAdd(word, 1u); store_relaxed((u64)flag, (u64)threadIdx.x); load_relaxed(flag);",
    "volatile": "*(volatile u32*)word = 1;",
    "a copy": f"{BEGIN} {FILL} {WAIT} {TAKE}",
    "a copy, asked for": f"{BEGIN} {FILL} while (!barrier_try(full, 0)) {{}} {TAKE}",
    "a copy over what was read": f"{BEGIN} {FILL} {WAIT} {TAKE} __syncthreads(); {FILL} {WAIT_AGAIN} {TAKE}",
}
SHARED, GLOBAL, BARRIER = " shared memory, 0x", "(to|from) memory, 0x", "comes to a barrier"
RACES = {
    "no barrier": (SHARED, f"kept[threadIdx.x] = 1; {OTHER}"),
    "barriers of others": (SHARED, "kept[LANE] = 1; __barrier_sync_count(threadIdx.x / 32 + 3, 32);"),
    "a shuffle": (SHARED, "kept[threadIdx.x] = 1; __shfl_sync(~0u, 1, 0); word[threadIdx.x] = kept[threadIdx.x ^ 1];"),
    "stored by two": (GLOBAL, "if (LANE == 0) word[0] = 1;"),
    "stored while read": (GLOBAL, "kept[threadIdx.x] = *word; IS(60) *word = 1;"),
    "no release": (GLOBAL, f"IS(0) {{ word[99] = 1; {SAY} }} IS(40) {{ {HEAR} fence(); word[99] = 2; }}"),
    "no acquire": (GLOBAL, f"{GIVE} IS(40) {{ {HEAR} word[99] = 2; }}"),
    "not the last to count": (
        GLOBAL,
        "word[threadIdx.x] = 1; __threadfence(); if (atomicAdd(flag, 1ull) < 60) return;"
        "__threadfence(); for (int i = 0; i < 64; ++i) kept[threadIdx.x] += word[i];",
    ),
    "counted without a release": (
        GLOBAL,
        f"word[threadIdx.x] = 1; atomicAdd((u32*)flag, 1u); {ALL} word[threadIdx.x ^ 33] = 2;",
    ),
    "an atomic and a store": (GLOBAL, "atomicAdd(word, 1u); IS(40) *word = 1;"),
    "a copy that is not waited for": (SHARED, f"{BEGIN} {FILL} {TAKE} {WAIT}"),
    "a copy over what is read": (SHARED, f"{BEGIN} {FILL} {WAIT} {TAKE} {FILL} {WAIT_AGAIN}"),
    "two copies": (SHARED, f"{BEGIN} {FILL} IS(1) copy_bulk(slots + 16, copied, 16, full); {WAIT}"),
    "a copy of what is stored": (GLOBAL, f"{BEGIN} IS(40) *(u32*)copied = 1; {FILL} {WAIT}"),
    "a barrier that may not have begun": (
        BARRIER,
        "IS(0) barrier_begin(full, 1); IS(40) { for (int i = 0; i < 99; ++i) __nanosleep(1); barrier_arrive(full); }",
    ),
}
PAIR = "IS(0) barrier_begin(full, 1); pair_together();"
SEND = "IS(40) send_to_peer(at_peer(shared_address(kept)), 1ull, full); IS(0) barrier_expect(full, 8);"
SENT, BOTH = "word[64 * blockIdx.x + threadIdx.x] = kept[0];", "pair_together();"
ORDERED_BLOCKS = {
    "shared memory": "IS(0) kept[0] = blockIdx.x, *(u32*)dynamic_memory() = 1;",
    "what is sent": f"{PAIR} {SEND} {WAIT} {SENT} {BOTH}",
    "a pair": f"if (blockIdx.x) word[threadIdx.x] = 1; {BOTH} if (!blockIdx.x) word[threadIdx.x] = 2;",
    "release, acquire": f"if (blockIdx.x) {{ {GIVE} }} else IS(0) {{ {HAVE} word[99] = 2; }}",
}
RACES_OF_BLOCKS = {
    "what is sent": (SHARED, f"{PAIR} {SEND} {SENT} {WAIT} {BOTH}"),
    "no pair": (GLOBAL, "word[threadIdx.x] = blockIdx.x;"),
    "a barrier of another block": (GLOBAL, "if (blockIdx.x) *word = 1; __syncthreads(); if (!blockIdx.x) *word = 2;"),
}

HEAD = """
__shared__ u32 kept[64];
__shared__ u64 barriers[1];
#define LANE (threadIdx.x % 32)
#define IS(n) if (threadIdx.x == n)
__global__ void run(u64 which, u32* word, u64* flag, u64 copied) {
    const u32 slots = shared_address(dynamic_memory()), full = shared_address(barriers);
"""
CALL = "u64* w = (u64*)arguments; run(w[0], (u32*)w[1], (u64*)w[2], w[3])"
RACY = [body for _, body in (*RACES.values(), *RACES_OF_BLOCKS.values())]
BODIES = [*ORDERED.values(), *ORDERED_BLOCKS.values(), *RACY]
TEXT = HEAD + "".join(f"if (which == {i}) {{ {body} return; }}\n" for i, body in enumerate(BODIES)) + "}\n"


def run(body: str, seed: int, blocks: int = 1, text: str = TEXT) -> None:
    memory = np.zeros(256, np.uint64)
    first = -(-memory.ctypes.data // 16) * 16
    words = np.array([BODIES.index(body), first, first + 1024, first + 1536], np.int64)
    kernel = built_of(text, CALL, races=True)
    launch(kernel, (blocks,), 64, 128, words.ctypes.data, seed, at_once=blocks, most_turns=20_000)


@pytest.mark.parametrize("body", ORDERED.values(), ids=ORDERED)
def test_ordered_accesses_are_no_race(body: str) -> None:
    for seed in range(5):
        run(body, seed)


@pytest.mark.parametrize(("fault", "body"), RACES.values(), ids=RACES)
def test_a_race_is_found_in_any_order_of_threads(fault: str, body: str) -> None:
    for seed in range(5):
        with pytest.raises(RuntimeError, match=f"a race: .*{fault}"):
            run(body, seed)


@pytest.mark.parametrize("body", ORDERED_BLOCKS.values(), ids=ORDERED_BLOCKS)
def test_ordered_accesses_of_blocks_are_no_race(body: str) -> None:
    for seed in range(5):
        run(body, seed, blocks=2)


@pytest.mark.parametrize(("fault", "body"), RACES_OF_BLOCKS.values(), ids=RACES_OF_BLOCKS)
def test_a_race_of_blocks_is_found(fault: str, body: str) -> None:
    for seed in range(5):
        with pytest.raises(RuntimeError, match=f"a race: .*{fault}"):
            run(body, seed, blocks=2)


def test_a_report_has_both_threads_and_their_lines() -> None:
    body = RACES["stored by two"][1]
    text = TEXT.replace(body, "IS(3)\nword[9] = 1;\nIS(5)\nword[9] = 2;\n")
    with pytest.raises(RuntimeError) as raised:
        run(body, 0, text=text)
    fault = re.sub("0x[0-9a-f]+", "0x9", str(raised.value))
    both = ("thread 3 of block 0", "`word[9] = 1;`"), ("thread 5 of block 0", "`word[9] = 2;`")
    (now, place), (before, place_before) = both if fault.startswith("a race: thread 3") else both[::-1]
    later = f"and without an order {before} stores there in {place_before}"
    assert fault == f"a race: {now} stores to memory, 0x9 in {place}, {later}"
