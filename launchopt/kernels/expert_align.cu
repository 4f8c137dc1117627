// The map of a table, as EXPERT_MAP makes it (experts/routing.cuh), and blocks: the rows of each expert in parts of up to
// p.rows. A GEMM multiplies a block by one weight. Engines call this step moe_align_block_size.
//
// B is the table, C the map. `blocks` gets BLOCK_WORDS words, of which the first one is the number of blocks. Then each block
// has BLOCK_WORDS + p.rows words: its expert, its first row, its number of rows, a word that is not used, and for each row the
// entry of the table that it comes from. An entry is column * top_k + i. All words are int32.
//
// -DPDL=1: programmatic dependent launch, as in ops.cu.
// -DINDIRECT=1: A is the address of the addresses of A, B, C and `blocks`. A captured launch gets other operands by an upload.
#include "common/storage.cuh"
#include "common/ptx.cuh"
#include "shared/expert_align.cuh"
#ifndef PDL
#define PDL 0
#endif
#ifndef INDIRECT
#define INDIRECT 0
#endif

enum { WARPS = ALIGN_THREADS / 32 };

// Replace counts by the sums of those before, by one warp. Every lane has neighbours. first: columns of each of k experts,
// and 0; begin: gets the first block of each.
__device__ inline void sum_up(u32* first, u32* begin, u32* mapped, int k, u32 rows) {
    const int lane = threadIdx.x % 32, each = (k + 32) / 32, from = min(lane * each, k + 1), to = min(from + each, k + 1);
    u32 own = 0, own_blocks = 0;
    for (int i = from; i < to; ++i) own += first[i], own_blocks += (first[i] + rows - 1) / rows;
    u32 before = own, blocks = own_blocks;
    for (int step = 1; step < 32; step *= 2) {
        const u32 other = __shfl_sync(0xFFFFFFFFu, before, lane >= step ? lane - step : lane);
        const u32 other_blocks = __shfl_sync(0xFFFFFFFFu, blocks, lane >= step ? lane - step : lane);
        if (lane >= step) before += other, blocks += other_blocks;
    }
    before -= own, blocks -= own_blocks;
    for (int i = from; i < to; ++i) {
        const u32 count = first[i];
        first[i] = mapped[i] = before;
        begin[i] = blocks;
        before += count, blocks += (count + rows - 1) / rows;
    }
}

__device__ __forceinline__ void align(const char* table, u32* map, u32* blocks, const ExpertAlign& p) {
    extern __shared__ u32 first[];  // columns of each expert, later its first row; then the first block of each
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = (int)p.experts, top_k = (int)p.top_k;
    const int entries = (int)p.columns * top_k, rows = (int)p.rows, pitch = BLOCK_WORDS + rows;
    u32 *begin = first + k + 1, *heads = blocks + BLOCK_WORDS;
    const auto expert_of = [&](int entry) { return *(const u32*)(table + entry / top_k * p.pitch + entry % top_k * 4); };
    for (int i = threadIdx.x; i <= k; i += ALIGN_THREADS) first[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < entries; i += ALIGN_THREADS) {
        const u32 expert = expert_of(i);
        if (expert < k) atomicAdd(first + expert, 1u);
    }
    __syncthreads();
    if (warp == 0) sum_up(first, begin, map + entries, k, rows);
    __syncthreads();
    if (threadIdx.x == 0) blocks[0] = begin[k];
    for (int expert = warp; expert < k; expert += WARPS) {
        u32 row = first[expert];
        const u32 start = row, end = first[expert + 1];
        if (start == end) continue;
        u32* const head = heads + begin[expert] * pitch;
        for (u32 i = lane; start + i * rows < end; i += 32) {
            u32* const words = head + i * pitch;
            words[0] = expert, words[1] = start + i * rows, words[2] = min((u32)rows, end - words[1]);
        }
        for (int at = 0; at < entries; at += 32) {
            const int entry = at + lane;
            const bool is_own = entry < entries && expert_of(entry) == expert;
            const u32 found = __ballot_sync(0xFFFFFFFFu, is_own);
            if (is_own) {
                const u32 own = row + __popc(found & ((1u << lane) - 1)), within = own - start;
                map[entry] = own;
                head[within / rows * pitch + BLOCK_WORDS + within % rows] = entry;
            }
            row += __popc(found);
        }
    }
}

extern "C" __global__ void __launch_bounds__(ALIGN_THREADS, 1)
    expert_align(char* a, char* b, char* c, char* blocks, const ExpertAlign p) {
#if PDL
    let_next_begin();
    wait_for_earlier();
#endif
#if INDIRECT
    char* const* at = (char* const*)a;
    b = at[1], c = at[2], blocks = at[3];
#endif
    align(b, (u32*)c, (u32*)blocks, p);
}
