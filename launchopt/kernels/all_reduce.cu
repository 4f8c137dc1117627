// C = the sum of the B of all ranks, the GPUs that split a model, in fp32 and in the order of the ranks. Every rank reads the
// parts of all others in their memory, so that all ranks get the same bits.
//
// Each block exchanges flags with the same block of the other ranks. A flag is a generation: the number of all-reduces at which
// the block has arrived. It is counted in device memory, so that a CUDA graph can repeat the launch. All ranks launch the same
// grid, whose blocks must run at the same time.
//
// No second barrier is needed: a rank writes a part to the same place again only behind a later all-reduce, at which the others
// arrive when they have read this part.
//
// -DPDL=1: programmatic dependent launch, as in ops.cu.
#include "common/storage.cuh"
#include "common/ptx.cuh"
#include "shared/all_reduce.cuh"
#ifndef PDL
#define PDL 0
#endif

// Announce to all ranks that this rank's part is in memory, and wait until theirs are. Call it with one thread for each rank.
__device__ inline void meet(const Peers& peers, u64 generation) {
    store_release_system(peers.flags[threadIdx.x] + blockIdx.x, generation);
    const u64* from = peers.arrived + threadIdx.x * ALL_REDUCE_BLOCKS + blockIdx.x;
    const u64 until_ns = global_ns() + peers.limit_ns;
    while (load_acquire_system(from) < generation)
        if (global_ns() > until_ns) {
            peers.account[GAVE_UP] = 1;
            return;
        }
}

extern "C" __global__ void ALL_REDUCE(char* a, char* b, char* c, i64 request, const AllReduce p) {
#if PDL
    let_next_begin();
    wait_for_earlier();
#endif
    const Peers& peers = *(const Peers*)p.peers;
    const bool is_first = blockIdx.x == 0 && threadIdx.x == 0;
    const u64 begin_ns = is_first ? global_ns() : 0, generation = peers.generations[blockIdx.x] + 1;
    if (threadIdx.x < peers.size) meet(peers, generation);
    __syncthreads();
    const u64 met_ns = is_first ? global_ns() : 0;

    const i64 vectors = (p.m + WIDTH - 1) / WIDTH, all = p.commands * p.n * vectors;
    const u64 place = (u64)b - peers.parts[peers.rank];
    const bool whole = aligned(b, p.ldb) && aligned(c, p.ldc) && ((p.stride_b | p.stride_c) & 15) == 0;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += (i64)gridDim.x * blockDim.x) {
        const i64 row = i / vectors, first = i % vectors * WIDTH, left = p.m - first;
        const i64 from = row / p.n * p.stride_b + (row % p.n * p.ldb + first) * (i64)sizeof(storage);
        const i64 to = row / p.n * p.stride_c + (row % p.n * p.ldc + first) * (i64)sizeof(storage);
        Vector part[MOST_RANKS];  // all are on their way before the first is added
#pragma unroll
        for (int rank = 0; rank < MOST_RANKS; ++rank)
            if (rank < peers.size) part[rank] = read((const storage*)(peers.parts[rank] + place + from), left, whole);
        float sum[WIDTH] = {};
#pragma unroll
        for (int rank = 0; rank < MOST_RANKS; ++rank)
            if (rank < peers.size)
                for (int j = 0; j < WIDTH; ++j) sum[j] += widen(part[rank].parts[j]);
        store((storage*)(c + to), sum, left, whole);
    }

    __syncthreads();
    if (threadIdx.x == 0) peers.generations[blockIdx.x] = generation;
    if (is_first) {
        peers.account[CALLS] += 1;
        peers.account[WAIT_NS] += met_ns - begin_ns;
        peers.account[TOTAL_NS] += global_ns() - begin_ns;
    }
}
