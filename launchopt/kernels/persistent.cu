// The persistent kernel. It takes commands, GEMMs of few columns, from a ring that the host fills, and multiplies them. It
// returns when it reads the word END.
//
//   host ring   four words per command in pinned memory. The host writes them (devices/resident/ring.py); one warp, the
//               dispatcher, polls them.
//   tile        some rows of one command
//   entries     a second ring, of eight words per tile, in the GPU's memory; the dispatcher writes them
//   workers     groups of 8 warps. Each worker takes a ticket, a number, and polls the entry of that number.
//   slot        place of a command in the host ring
//   done        index + 1 of the last complete command of each slot: one array in the GPU's memory, one in pinned memory
//   outputs     outputs of a small command that came alone, in pinned memory. Each word also holds the command's number, in
//               its upper half.
//
// A command comes alone if the ring holds no command behind it when the dispatcher finds it. The dispatcher's group, or the
// dispatcher alone, multiplies such a command if it is short (lone_commands.cuh) or small (small_commands.cuh).
//
// The upper 16 bits of each word of a ring are its tag: the number of the ring's lap. A reader compares the tag with the lap
// that it expects. A successful poll therefore already has the word, and needs no head pointer. If few commands are in the
// ring, the dispatcher cuts each into tiles, one per idle worker. If many are, each command is one tile. The host reuses a
// slot once the slot's command is complete, so at most `capacity` commands are in flight. The dispatcher reuses an entry once
// the entry's command is complete (`await_entries`).
//
// Order: the field `before` of a command is the distance to an earlier command, for whose completion the command waits.
// Tickets have the order of the ring, so the earlier command is complete or a worker has it. All blocks are resident, one per
// multiprocessor.
//
// END makes each worker return after the commands before END. `progress` keeps the number of commands and tiles so far, with
// which the next launch goes on. The host may post commands of the next launch before this one has read END. If no command
// comes for `patience_ns`, the kernel gives up and reports that to the host.
//
// Operands: a command reads the data that was in memory before the host wrote the command, or before `done` reported the
// command for which it waits. A tile of many rows reads B through the L1 cache. It begins with a fence, which drops stale
// lines of that cache.
//
// -DWITHOUT=1: skip the multiplications, to time the rest.
#ifndef WITHOUT
#define WITHOUT 0
#endif
#include "common/storage.cuh"
#include "common/ptx.cuh"
#include "common/skinny.cuh"
#include "persistent/queue.cuh"
#include "persistent/lone_commands.cuh"
#include "persistent/dispatcher_state.cuh"
#include "persistent/completions.cuh"
#include "persistent/small_commands.cuh"
#include "persistent/dispatcher.cuh"

// Execute tiles as one worker until END. words: shared memory for one entry; part: shared memory for sums.
__device__ void work(int group, u64* words, float (*part)[MOST_COLUMNS]) {
    const int thread = threadIdx.x % (32 * GROUP_WARPS), warp = thread / 32, lane = thread % 32;
    u64 ticket = thread == 0 ? atomicAdd(queue.ticket, 1ull) : 0;
    for (;;) {
        if (warp == 0) {
            ticket = __shfl_sync(0xFFFFFFFFu, ticket, 0);
            const u64 tag = ((ticket >> queue.entry_bits) + 1) & 0xFFFF;
            const u64* from = queue.entries + (ticket & ((1ull << queue.entry_bits) - 1)) * ENTRY_WORDS + lane;
            u64 word = tag << TAG_SHIFT;
            for (u32 polls = 0;; ++polls) {
                if (lane < USED_WORDS) word = load_relaxed(from);
                if (__all_sync(0xFFFFFFFFu, word >> TAG_SHIFT == tag)) break;
                if (polls > BUSY_POLLS) __nanosleep(polls > QUIET_POLLS ? 2000 : 100);
            }
            // The fence drops stale lines of the L1 cache. Tiles of fewer rows than GROUP_WARPS read B from the L2 cache.
            if ((__shfl_sync(0xFFFFFFFFu, word, 4) & PAYLOAD) >> 24 >= GROUP_WARPS) fence();
            if (lane < USED_WORDS) words[lane] = word & PAYLOAD;
        }
        group_barrier(group);
        Order o;
        o.a = words[0], o.b = words[1], o.c = words[2];
        o.index = (u32)words[3], o.before = (u32)(words[3] >> 32);
        o.first = (u32)(words[4] & 0xFFFFFF), o.rows = (u32)(words[4] >> 24);
        o.shape = (u32)(words[5] & 0xFFFF), o.tiles = (u32)(words[5] >> 16);
        if (o.shape == END) return;
        const Shape s = shapes[o.shape];
        if (o.before) {
            if (thread == 0) await(o);
            group_barrier(group);
        }
#if !WITHOUT
        multiply(tile_of(o, s), s, warp, lane, group, part);
#endif
        group_barrier(group);
        if (thread == 0) {
            ticket = atomicAdd(queue.ticket, 1ull);
            complete(o.index, o.tiles);
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * GROUP_WARPS * GROUPS, 1) persistent(const Queue* far) {
    __shared__ u64 words[GROUPS][ENTRY_WORDS];
    __shared__ float parts[GROUPS][GROUP_WARPS][MOST_COLUMNS];
    if (threadIdx.x == 0) queue = *far, shapes.far = far->shapes;
    if (threadIdx.x < min(far->shape_count, (u64)NEAR_SHAPES)) shapes.near[threadIdx.x] = far->shapes[threadIdx.x];
    __syncthreads();
    const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0), lane = threadIdx.x % 32, group = warp / GROUP_WARPS;
    if (blockIdx.x > 0 || group > 0) return work(group, words[group], parts[group]);
    begin_dispatch();
    // The first warp returns from `dispatch` to multiply small commands that come alone.
    for (bool again = false; __any_sync(0xFFFFFFFFu, dispatch(warp, lane, again)); again = true) serve_small(lane);
}
