// C = B @ A.T for each expert of a layer, in one launch: halves, accumulated in fp32. The columns of an expert are neighbours
// in B and C. `first` has the first column of each expert, and the end of the last one, as EXPERT_MAP leaves them
// (experts/routing.cuh). So the host need not know how many columns an expert has, and the launch can be captured.
//
// Coordinate y of the grid is a piece of work: an expert, and up to EXPERT_COLUMNS of its columns. The grid has as many as any
// routing can need; blocks beyond them return at once. Coordinate x is EXPERT_ROWS rows of the weight. The warps of a block
// share k: warp w multiplies chunks w, w + EXPERT_WARPS and so on, of 32 elements each. The block adds up their sums in a fixed
// order.
//
// mma.m16n8k16 multiplies 16 rows by 8 columns. Any order of k gives the same sums, as long as A and B agree: a thread has 8
// neighbours of 32 (k = 8 t to 8 t + 7 for thread 4 g + t), and uses them in two products.
//
// -DPDL=1: programmatic dependent launch, as in ops.cu.
// -DINDIRECT=1: A is the address of the addresses of A, B, C and `first`. A captured launch gets other operands by an upload.
#include "common/storage.cuh"
#include "common/ptx.cuh"
#include "shared/expert_gemm.cuh"
#include "experts/work.cuh"
#ifndef PDL
#define PDL 0
#endif
#ifndef INDIRECT
#define INDIRECT 0
#endif

enum { TILES = EXPERT_ROWS / 16, GROUPS = EXPERT_COLUMNS / 8, CHUNK = 32, TOGETHER = 2, THREADS = 32 * EXPERT_WARPS };

// Read 8 neighbours, of which `left` exist. WHOLE: they are aligned, and all of them exist, or none.
template <bool WHOLE> __device__ __forceinline__ Vector eight(const storage* from, i64 left) {
    if (!WHOLE) return read(from, left, false);
    Vector vector;
    vector.whole = {0, 0, 0, 0};
    if (left > 0) vector.whole = *(const uint4*)from;
    return vector;
}

typedef float Sums[TILES][GROUPS][4];

// Add up this warp's products of the block's rows from `row` on with the columns of its work.
template <bool WHOLE>
__device__ __forceinline__ void
add_products(Sums& sums, const storage* weight, const storage* inputs, i64 row, const Work& work, const ExpertGemm& p) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    // A row beyond the weight's last one stands for that, and its sums are not used. So does a column.
    const storage *from_a[TILES][2], *from_b[GROUPS];
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            from_a[tile][half] = weight + min(row + 16 * tile + 8 * half + g, p.m - 1) * p.k + 8 * t;
#pragma unroll
    for (int group = 0; group < GROUPS; ++group)
        from_b[group] = inputs + min(8 * group + g, work.columns - 1) * p.ldb + 8 * t;
    const int groups = (work.columns + 7) / 8;
    for (i64 k = (i64)warp * CHUNK; k < p.k; k += TOGETHER * EXPERT_WARPS * CHUNK) {
        Vector x[TOGETHER][TILES][2], y[TOGETHER][GROUPS];
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) {
            const i64 at = k + i * EXPERT_WARPS * CHUNK, left = p.k - at - 8 * t;
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                for (int half = 0; half < 2; ++half) x[i][tile][half] = eight<WHOLE>(from_a[tile][half] + at, left);
#pragma unroll
            for (int group = 0; group < GROUPS; ++group)
                y[i][group] = eight<WHOLE>(from_b[group] + at, group < groups ? left : 0);
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i)
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                const uint4 &low = x[i][tile][0].whole, &high = x[i][tile][1].whole;
#pragma unroll
                for (int group = 0; group < GROUPS; ++group) {
                    const uint4& by = y[i][group].whole;
                    mma(sums[tile][group], low.x, high.x, low.y, high.y, by.x, by.y);
                    mma(sums[tile][group], low.z, high.z, low.w, high.w, by.z, by.w);
                }
            }
    }
}

__device__ __forceinline__ void multiply(const char* a, const char* b, char* c, const u32* first, const ExpertGemm& p) {
    __shared__ float parts[EXPERT_WARPS][EXPERT_COLUMNS][EXPERT_ROWS + 4];  // the gap avoids bank conflicts
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const Work work = work_of<EXPERT_COLUMNS>(first, blockIdx.y, (int)p.experts, (u32)p.columns);
    if (!work.columns) return;
    const i64 row = (i64)blockIdx.x * EXPERT_ROWS;
    const storage* weight = (const storage*)(a + work.expert * p.stride_a);
    const storage* inputs = (const storage*)b + work.column * p.ldb;
    Sums sums = {};
    if (p.k % WIDTH == 0 && aligned(weight, p.k) && aligned(inputs, p.ldb))
        add_products<true>(sums, weight, inputs, row, work, p);
    else
        add_products<false>(sums, weight, inputs, row, work, p);
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
        for (int group = 0; group < GROUPS; ++group)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                parts[warp][8 * group + 2 * t + i % 2][16 * tile + 8 * (i / 2) + g] = sums[tile][group][i];
    __syncthreads();
    for (int i = threadIdx.x; i < EXPERT_ROWS * work.columns; i += THREADS) {
        const int of_row = i % EXPERT_ROWS, column = i / EXPERT_ROWS;
        float sum = 0.0f;
#pragma unroll
        for (int each = 0; each < EXPERT_WARPS; ++each) sum += parts[each][column][of_row];
        if (row + of_row < p.m) ((storage*)c)[(work.column + column) * p.ldc + row + of_row] = narrow(sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    expert_gemm(char* a, char* b, char* c, char* first, const ExpertGemm p) {
#if PDL
    let_next_begin();
    wait_for_earlier();
#endif
#if INDIRECT
    char* const* at = (char* const*)a;
    a = at[0], b = at[1], c = at[2], first = at[3];
#endif
    multiply(a, b, c, (const u32*)first, p);
}
