// A kernel that stays: GEMMs of few columns, taken from a ring that the host fills, until one says END.
//
//   host ring   four words a command in pinned memory of the host, written by the host (devices/resident/ring.py), polled by
//               one warp, the dispatcher
//   entries     eight words a tile (some rows of one command) in the GPU's memory, written by the dispatcher
//   workers     groups of 8 warps; each takes a ticket, and polls the entry of that number
//   done        index + 1 of the command that was last completed in a slot; one for kernels, one for the host
//   outputs     of a small command that came alone, for the host, with the command's number above each (see persistent/)
//
// Every word carries the number of its ring's lap in its upper 16 bits, so it is seen whole or not yet, and a poll that
// finds it brings it along: there is no head to read first. The dispatcher cuts few commands into as many tiles as there
// are idle workers; of many each is one tile. The host uses a slot again when it has seen its command complete, so at
// most `capacity` commands are under way; an entry is used again when the command it was of is complete (`make_room`).
//
// Order: a command that names an earlier one (`before`: how many commands ago) waits for its completion. Tickets follow
// the ring, so what is waited for is always with another worker, or done. All blocks are resident: there is one an SM.
//
// END makes every worker return, once what came before it is done. Where the ring and the tickets stand is kept, so that
// the next kernel goes on there (`progress`): what that is to do may be in the ring before this one has seen its END. Who
// has had no command for `patience_ns` ends, too, and says so.
//
// Operands: what a command reads was in memory before the host wrote the command, or before `done` told of the command
// it waits for; a tile of many rows, which reads B through the L1 cache, begins with a fence that drops what is there.
//
// -DWITHOUT=1: nothing is multiplied, so that all else can be timed.
#ifndef WITHOUT
#define WITHOUT 0
#endif
#include "common/storage.cuh"
#include "common/skinny.cuh"
#include "common/ptx.cuh"
#include "persistent/queue.cuh"
#include "persistent/lone_commands.cuh"
#include "persistent/dispatcher_state.cuh"
#include "persistent/completions.cuh"
#include "persistent/small_commands.cuh"
#include "persistent/dispatcher.cuh"

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
            if ((__shfl_sync(0xFFFFFFFFu, word, 4) & PAYLOAD) >> 24 >= GROUP_WARPS) fence();  // few rows are read past the L1
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
    begin_dispatch();  // and while there are small commands that come alone, its first warp does these here
    for (bool again = false; __any_sync(0xFFFFFFFFu, dispatch(warp, lane, again)); again = true) serve_small(lane);
}
