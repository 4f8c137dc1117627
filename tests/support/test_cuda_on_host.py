"""Kernels on the host (cuda_on_host): barriers, warps and shared memory work as on a device, and faults are found."""

from __future__ import annotations

import numpy as np
import pytest

from support.cuda_on_host import built_of, can_build, launch

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")

SUM = """
__shared__ int kept;
__global__ void sum(const int* from, int* to) {
    __shared__ int part[64];
    extern __shared__ int more[];
    part[threadIdx.x] = from[blockIdx.x * blockDim.x + threadIdx.x];
    if (threadIdx.x == 0) kept = blockIdx.x, more[0] = 100;
    __syncthreads();
    if (threadIdx.x != 63) return;
    int all = more[0] * kept;
    for (int i = 0; i < 64; ++i) all += part[i];
    to[blockIdx.x] = all;
}
"""
CALL = "sum(((const int**)arguments)[0], ((int**)arguments)[1])"
SHUFFLE = """
__global__ void turn(float* to) {
    float value = threadIdx.x;
    for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
    to[threadIdx.x] = value;
}
"""
APART = "__global__ void apart() { __barrier_sync_count(threadIdx.x < 32 ? 1 : 2, 64); }"
ENDLESS = "__global__ void endless(volatile unsigned* word) { while (!*word) __nanosleep(10); }"


TELL = """
__global__ void tell(u64* words) {
    if (threadIdx.x) return;
    STEPS
    store_told(words, 1);
}
"""


def summed(text: str, seed: int, at_once: int = 4) -> list[int]:
    numbers, sums = np.arange(256, dtype=np.int32), np.zeros(4, np.int32)
    arguments = np.array([numbers.ctypes.data, sums.ctypes.data], np.int64)
    launch(built_of(text, CALL), (4,), 64, 4, arguments.ctypes.data, seed, at_once)
    return sums.tolist()


EXPECTED = [sum(range(64 * block, 64 * block + 64)) + 100 * block for block in range(4)]


@pytest.mark.parametrize("at_once", [1, 3, 4])
def test_each_block_has_shared_memory_of_its_own(at_once: int) -> None:
    assert [summed(SUM, seed, at_once) for seed in range(3)] == [EXPECTED] * 3


def test_a_missing_barrier_changes_the_result() -> None:
    """In some order, the thread that adds up runs before the others."""
    racing = SUM.replace("    __syncthreads();\n", "")
    assert racing != SUM
    assert any(summed(racing, seed) != EXPECTED for seed in range(5))


def test_a_warp_exchanges_values() -> None:
    values = np.zeros(64, np.float32)
    launch(built_of(SHUFFLE, "turn((float*)arguments)"), (1,), 64, 0, values.ctypes.data)
    assert values.tolist() == [sum(range(32))] * 32 + [sum(range(32, 64))] * 32


def test_threads_that_wait_for_each_other_forever_are_a_fault() -> None:
    with pytest.raises(RuntimeError, match="all threads of a block wait for each other"):
        launch(built_of(APART, "apart()"), (1,), 64, 0, 0)


def test_a_wait_without_end_is_a_fault() -> None:
    word, library = np.zeros(1, np.uint32), built_of(ENDLESS, "endless((volatile unsigned*)arguments)")
    with pytest.raises(RuntimeError, match="does not end"):
        launch(library, (1,), 32, 0, word.ctypes.data, most_turns=1000)


@pytest.mark.parametrize(
    ("steps", "fault"),
    [
        ("store_system(words + 1, 2); fence_system();", None),
        ("store_system(words + 1, 2); fence();", "may not have arrived"),
        ("fence_system(); store_system(words + 1, 2);", "may not have arrived"),
        ("fence_system(); atomicAdd(words + 1, 2ull);", "may not have arrived"),
    ],
)
def test_the_host_is_notified_after_a_system_fence(steps: str, fault: str | None) -> None:
    """The fence must follow every store and atomic operation that precedes the notification."""
    words = np.zeros(2, np.uint64)
    library = built_of(TELL.replace("STEPS", steps), "tell((u64*)arguments)")
    if fault is None:
        launch(library, (1,), 32, 0, words.ctypes.data)
        assert words.tolist() == [1, 2]
        return
    with pytest.raises(RuntimeError, match=fault):
        launch(library, (1,), 32, 0, words.ctypes.data)
