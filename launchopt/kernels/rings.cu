// Rings of slots that a warp fills by bulk copies and another one reads, each with the order of megakernel.cu's, or without it:
// which of them NVIDIA's racecheck reports (scripts/racecheck_rings.py).
//
// -DSEEN=0: each lane of the reader waits until a slot is full; 1: one does, before a __syncwarp. -DLEFT=0: each lane says that
// it has read it; 1: one does for all, behind a __syncwarp; 2: each lane, before it reads it, which is wrong.
#include "storage.cuh"
#include "ptx.cuh"
enum { BY_EACH, BY_ONE, TOO_EARLY };
enum { SLOTS = 2, WARP = 32, SLOT_BYTES = WARP * sizeof(uint4) };

__shared__ uint4 slots[SLOTS][WARP];
__shared__ u64 full[SLOTS], empty[SLOTS];

__device__ inline void fill(u32 slot, u32 phase, const uint4* from, u32 lane) {
    barrier_wait(shared_address(empty + slot), phase ^ 1);  // the first time it is
    __syncwarp();
    if (lane) return;
    barrier_expect(shared_address(full + slot), SLOT_BYTES);
    copy_bulk(shared_address(slots[slot]), (u64)from, SLOT_BYTES, shared_address(full + slot));
}
__device__ inline u32 read(u32 slot, u32 phase, u32 lane) {
    if (SEEN == BY_EACH || lane == 0) barrier_wait(shared_address(full + slot), phase);
    __syncwarp();
    if (LEFT == TOO_EARLY) barrier_arrive(shared_address(empty + slot));
    const uint4 found = load_shared(shared_address(&slots[slot][lane ^ 1]));
    if (LEFT == BY_ONE) __syncwarp();
    if (LEFT == BY_EACH || LEFT == BY_ONE && lane == 0) barrier_arrive(shared_address(empty + slot));
    return found.x + found.y + found.z + found.w;
}
// from: uint4 [blocks, fills, WARP]; sums: [blocks, WARP], of the words that a lane of the reader reads.
extern "C" __global__ void rings(const uint4* from, u32* sums, u64 fills) {
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (threadIdx.x < SLOTS) {
        barrier_begin(shared_address(full + threadIdx.x), 1);
        barrier_begin(shared_address(empty + threadIdx.x), LEFT == BY_ONE ? 1 : WARP);
        barriers_begun();
    }
    __syncthreads();
    from += blockIdx.x * fills * WARP;
    u32 sum = 0;
    for (u32 i = 0; i < fills; ++i) {
        const u32 slot = i % SLOTS, phase = i / SLOTS % 2;
        if (warp == 0) fill(slot, phase, from + i * WARP, lane);
        else sum += read(slot, phase, lane);
    }
    if (warp) sums[blockIdx.x * WARP + lane] = sum;
}
