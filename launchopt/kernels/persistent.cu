// The persistent kernel: it multiplies GEMMs of few columns, which it takes from a ring that the host fills, until a command
// says END.
//
//   host ring   four words per command in pinned memory, written by the host (devices/resident/ring.py); one warp, the
//               dispatcher, polls it
//   entries     eight words per tile, which is some rows of one command, in the GPU's memory; written by the dispatcher
//   workers     groups of 8 warps; each takes a ticket and polls the entry of that number
//   done        index + 1 of the last command that is complete in each slot; one array for kernels, one for the host
//   outputs     outputs of a small command that came alone, for the host; the command's number stands above each
//
// The upper 16 bits of each word hold the lap of its ring. So a reader sees whether the word is there, and a successful poll
// already has the word: there is no head pointer to read first. The dispatcher cuts a few commands into as many tiles as there
// are idle workers. Of many commands each is one tile. The host uses a slot again when its command is complete, so at most
// `capacity` commands are under way. An entry is used again when its command is complete (`make_room`).
//
// Order: `before` of a command names an earlier command, by how many commands ago it came. The command waits for its
// completion. Tickets follow the ring, so the earlier command is complete or with another worker. All blocks are resident, one
// per multiprocessor.
//
// END makes every worker return behind the commands before it. `progress` keeps the places in the ring and in the entries, so
// that the next kernel goes on there. The commands of the next kernel may be in the ring before this one has read END. If no
// command comes for `patience_ns`, the kernel gives up and reports that.
//
// Operands: a command reads what was in memory before the host wrote the command, or before `done` reported the command it
// waits for. A tile of many rows reads B through the L1 cache, so it begins with a fence, which drops older data.
//
// -DWITHOUT=1: multiply nothing, to time all the rest.
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
            // Tiles of fewer rows read B past the L1 cache.
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
    begin_dispatch();  // the first warp leaves `dispatch` to multiply small commands that come alone
    for (bool again = false; __any_sync(0xFFFFFFFFu, dispatch(warp, lane, again)); again = true) serve_small(lane);
}
