// C = B @ A.T for each expert of a layer in one launch, with what follows it: SiLU(gate) * up, or the weighted sum. Halves
// only, accumulated in fp32. A may be quantised. Everything that launches of their own would write is written.
//
// An item is ROWS rows of the weight of an expert, and up to COLUMNS of its columns, which are neighbours. A block takes items
// blockIdx.x, blockIdx.x + gridDim.x and so on. The warps of a block share k: each multiplies TOGETHER chunks, then skips those
// of the other warps. As soon as a vector of weights has been multiplied, the thread loads its next one, also of the next item.
// So loads of weights never pause. The block adds up the sums of its warps in a fixed order.
//
// mma.m16n8k16 multiplies 16 rows by 8 columns. Any order of k gives the same sums, as long as A and B agree: a thread has
// 8 * PACK neighbours of a chunk, and uses them in 2 * PACK products.
//
// Operands: A is the weights, B the inputs, C the results, D the outputs of the step from its logits on.
//
// Macros:
//   COLUMNS    most columns of an item: 8 or 16
//   WARPS      warps of a block; BLOCKS: blocks that fit on a multiprocessor
//   TOGETHER   chunks that a warp multiplies one after another
//   LISTED     1: expert_route.cu has left the list of work; 0: each block finds its work by the map
//   GATHERS    1: B has the columns of the step. The list says which one a row is a copy of, and the copies are written
//   GATED      1: A has m rows of gates and then as many of ups; SiLU(gate) * up is written, too
//   COMBINES   1: the last block of some features adds up the rows of each column, as COMBINE does (experts/routing.cuh)
//   AHEAD      1: the list is complete before this launch begins, and weights are loaded before the previous launch has ended
//   WEIGHTS, SCALES  of a quantised A (common/quantised.cuh); PDL, INDIRECT, STEPPED, WHOLE and EVEN (experts/fused.cuh)
#include "common/storage.cuh"
#include "common/ptx.cuh"
#ifndef WEIGHTS
#define WEIGHTS FORMAT_NONE
#define SCALES PER_CHANNEL
#endif
#include "common/quantised.cuh"
#include "steps/unpacked.cuh"
#include "shared/expert_fused.cuh"
#include "experts/fused.cuh"
#include "experts/work.cuh"

enum { PACK = 16 / CODE_BITS, VECTOR = 8 * PACK, CHUNK = 4 * VECTOR };  // weights of a vector, and of four
enum { TILES = 2, ROWS = 16 * TILES, OUT_ROWS = GATED ? 16 : ROWS, GROUPS = COLUMNS / 8, THREADS = 32 * WARPS };
enum { IS_PLAIN = WEIGHTS == FORMAT_NONE, BY_BLOCK = !IS_PLAIN && SCALES == PER_BLOCK, BY_ROW = !IS_PLAIN && !BY_BLOCK };
enum { SUMMED = 8 };  // rows of a column that are loaded at once for the weighted sum

#include "experts/items.cuh"

typedef float Sums[TILES][GROUPS][4];

// Add to `sums` the products of a chunk. y: its inputs. at: its first weight in a row.
__device__ __forceinline__ void multiply(
    Sums& sums, const uint4 (&x)[TILES][2], const uint4 (&y)[PACK][GROUPS], const Item& item, const QuantisedWeight& weight,
    i64 at, const ExpertFused& p) {
    Sums of_block = {};
    Sums& to = BY_BLOCK ? of_block : sums;
#pragma unroll
    for (int part = 0; part < PACK; ++part)
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            const uint4 low = halves_of(x[tile][0], part), high = halves_of(x[tile][1], part);
#pragma unroll
            for (int group = 0; group < GROUPS; ++group) {
                const uint4& by = y[part][group];
                mma(to[tile][group], low.x, high.x, low.y, high.y, by.x, by.y);
                mma(to[tile][group], low.z, high.z, low.w, high.w, by.z, by.w);
            }
        }
    if constexpr (BY_BLOCK) {
        if (at >= p.k) return;
#pragma unroll
        for (int own = 0; own < 2 * TILES; ++own) {  // a row of this thread: half `own % 2` of tile `own / 2`
            const i64 row = item.weight_row(8 * own + threadIdx.x % 32 / 4, p);
            const float scale = widen_scale(weight.scale(row, at / CODES));
#pragma unroll
            for (int i = 0; i < 2 * GROUPS; ++i) {
                float& sum = sums[own / 2][i / 2][2 * (own % 2) + i % 2];
                sum += scale * of_block[own / 2][i / 2][2 * (own % 2) + i % 2];
            }
        }
    }
}

__shared__ float parts[WARPS][COLUMNS][ROWS + 4];  // the gap avoids bank conflicts

__device__ __forceinline__ float sum_of(int row, int column) {
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) sum += parts[warp][column][row];
    return sum;
}

// The scales of the rows whose results a thread stores: of an output, or of a gate and its up. They are loaded before the
// products.
struct RowScales {
    stored_scale of[2];
    __device__ __forceinline__ RowScales(const Item& item, const QuantisedWeight& weight, const ExpertFused& p) : of{} {
        const int row = threadIdx.x % OUT_ROWS;
        if (BY_ROW) of[0] = weight.scale(item.weight_row(row, p));
        if (BY_ROW && GATED) of[1] = weight.scale(item.weight_row(16 + row, p));
    }
    __device__ __forceinline__ float wide(int i) const { return BY_ROW ? widen_scale(of[i]) : 1.0f; }
};

// Add up the sums of the warps, and store the results of an item.
__device__ __forceinline__ void
store(const Sums& sums, const Item& item, const RowScales& scales, storage* c, char* d, const ExpertFused& p) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
        for (int group = 0; group < GROUPS; ++group)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                parts[warp][8 * group + 2 * t + i % 2][16 * tile + 8 * (i / 2) + g] = sums[tile][group][i];
    __syncthreads();
    const int of_item = threadIdx.x % OUT_ROWS;
    const i64 row = item.row + of_item;
    if (row >= p.m) return;
    for (int column = threadIdx.x / OUT_ROWS; column < item.work.columns; column += THREADS / OUT_ROWS) {
        const i64 at = item.work.column + column;
        storage* const to = c + at * p.ldc + row;
        const storage first = narrow(scales.wide(0) * sum_of(of_item, column));
        *to = first;
        if (GATED) {
            const storage second = narrow(scales.wide(1) * sum_of(16 + of_item, column));
            to[p.m] = second;
            const float gate = widen(first);
            ((storage*)(d + p.activated_at))[at * p.ld_activated + row] = narrow(gate / (1.0f + expf(-gate)) * widen(second));
        }
    }
}

// Write this block's share of the copies of columns that are an item's inputs.
__device__ __forceinline__ void copy_inputs(const Item& item, const storage* inputs, char* d, const ExpertFused& p) {
    const u32* const sources = (const u32*)p.sources + item.work.column;
    storage* const to = (storage*)(d + p.gathered_at) + item.work.column * p.ld_gathered;
    const u32 vectors = (u32)(p.k + WIDTH - 1) / WIDTH, tiles = (u32)p.tiles;
    const u32 own = (u32)(item.row / OUT_ROWS) + threadIdx.x / 32 * tiles;  // neighbouring warps of all items of these columns
    for (u32 i = own * 32 + threadIdx.x % 32; i < vectors * item.work.columns; i += tiles * WARPS * 32) {
        const i64 column = i / vectors, at = (i64)(i % vectors) * WIDTH;
        const storage* const from = inputs + __ldcg(sources + column) * p.ldb + at;
        if constexpr (WHOLE) *(uint4*)(to + column * p.ld_gathered + at) = *(const uint4*)from;
        else
            for (i64 each = 0; each < min((i64)WIDTH, p.k - at); ++each) to[column * p.ld_gathered + at + each] = from[each];
    }
}

// Add up the rows of each column, for the features of an item. Rows were stored by other blocks.
__device__ __forceinline__ void combine(const Item& item, const storage* c, char* d, const ExpertFused& p) {
    enum { VECTORS = OUT_ROWS / WIDTH };
    const int m = (int)p.top_k;
    for (int i = threadIdx.x; i < (int)p.tokens * VECTORS; i += THREADS) {
        const i64 token = i / VECTORS, feature = item.row + i % VECTORS * WIDTH, left = p.m - feature;
        const u32* const rows = (const u32*)(d + p.map_at) + token * m;
        const float* const weights = (const float*)(d + p.table_at + token * p.table_step) + m;
        storage* const to = (storage*)(d + p.out_at) + token * p.ld_out + feature;
        // Rows beyond the last one come only from memory that no command has written, after a fault in the order.
        const auto row_of = [&](int j) { return c + min(__ldcg(rows + j), (u32)p.columns - 1) * p.ldc + feature; };
        if (left < WIDTH) {
#pragma unroll 1
            for (i64 each = 0; each < left; ++each) {
                float sum = 0.0f;
#pragma unroll 1
                for (int j = 0; j < m; ++j) sum += __ldcg(weights + j) * widen(__ldcg(row_of(j) + each));
                to[each] = narrow(sum);
            }
            continue;
        }
        float sums[WIDTH] = {};
        for (int first = 0; first < m; first += SUMMED) {
            Vector x[SUMMED];
            float by[SUMMED];
#pragma unroll
            for (int j = 0; j < SUMMED; ++j) {  // without conditions, so that all loads are on their way at once
                const int at = min(first + j, m - 1);
                by[j] = __ldcg(weights + at), x[j].whole = __ldcg((const uint4*)row_of(at));
            }
#pragma unroll
            for (int j = 0; j < SUMMED; ++j)
#pragma unroll
                for (int part = 0; part < WIDTH; ++part)
                    if (first + j < m) sums[part] += by[j] * x[j].wide(part);
        }
        store(to, sums, WIDTH, true);  // rows of outputs are aligned to 256 bytes
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    expert_fused(char* a, char* b, char* c, char* d, const ExpertFused p) {
    Operands of = {a, b, c, d};
    if (!STEPPED || AHEAD) find(of, p, false);
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    if (PDL && !AHEAD) wait_for_earlier(), let_next_begin();
    if (STEPPED && !AHEAD) find(of, p, false);  // by the number that the routing left
    const storage* const inputs = (const storage*)of.b;
    const int rounds = (int)((p.k + WARPS * TOGETHER * CHUNK - 1) / (WARPS * TOGETHER * CHUNK));
    u32 number = blockIdx.x;
    Item item = item_of(number, of.d, p);
    Weights weights{p};
    if (item.work.columns) {
        weights.begin(item, of.a);
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) weights.load(i, place(0, i));
    }
    // The next launch may begin once this one knows that the launches before the previous one have ended: it may read the list.
    if (PDL && AHEAD) wait_for_earlier(), let_next_begin();
    while (item.work.columns) {
        number += gridDim.x;
        const Item next = item_of(number, of.d, p);
        const QuantisedWeight weight(of.a + item.work.expert * p.stride_a, GATED ? 2 * p.m : p.m, p.k);
        const RowScales scales(item, weight, p);
        const int groups = (item.work.columns + 7) / 8;
        const storage* from_b[GROUPS];
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
            const i64 column = item.work.column + min(8 * group + g, item.work.columns - 1);
            from_b[group] = inputs + (GATHERS ? (i64)__ldcg((const u32*)p.sources + column) : column) * p.ldb + t * VECTOR;
        }
        Sums sums = {};
        for (int round = 0; round < rounds; ++round) {
            uint4 y[TOGETHER][PACK][GROUPS];
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i)
#pragma unroll
                for (int part = 0; part < PACK; ++part)
#pragma unroll
                    for (int group = 0; group < GROUPS; ++group) {
                        const i64 at = place(round, i) + 8 * part, left = p.k - at - t * VECTOR;
                        if (group == 0 || group < groups) y[i][part][group] = paired(eight(from_b[group] + at, left));
                        else y[i][part][group] = {0, 0, 0, 0};
                    }
            const bool is_end = round + 1 == rounds;
            if (is_end && next.work.columns) weights.begin(next, of.a);
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) {
                multiply(sums, weights.of[i], y[i], item, weight, place(round, i), p);
                if (!is_end || next.work.columns) weights.load(i, place(is_end ? 0 : round + 1, i));
            }
        }
        store(sums, item, scales, (storage*)of.c, of.d, p);
        if (GATHERS) copy_inputs(item, inputs, of.d, p);
        if (COMBINES && is_last((u32*)p.counters + item.row / OUT_ROWS, (u32)item.work.pieces))
            combine(item, (const storage*)of.c, of.d, p);
        if (!COMBINES) __syncthreads();  // the parts have been read
        item = next;
    }
}
