// The routing of a layer with experts in one launch: router, top-k and map. It also leaves, for the launches of the experts'
// GEMMs (expert_fused.cu), the list of their work, and the column that each row is a copy of.
//
// Coordinate x of the grid is ROUTE_ROWS experts, coordinate y is COLUMNS columns. The warps of a block share k. The block of a
// group of columns that is the last to have its logits chooses the experts of these columns, one warp for each column. The last
// of these blocks makes the map. So a launch has no block that waits for another one.
//
// Operands: A is the router, B the inputs, C the outputs of the step from its logits on, D the selection biases.
//
// Macros: COLUMNS (8 or 16), also the most columns of a piece of work; PDL, INDIRECT, STEPPED,
// WHOLE and EVEN (experts/fused.cuh)
#include "common/storage.cuh"
#include "common/ptx.cuh"
#include "shared/expert_fused.cuh"
#include "experts/fused.cuh"
#include "experts/choice.cuh"

enum { GROUPS = COLUMNS / 8, CHUNK = 32, TOGETHER = 4, THREADS = 32 * ROUTE_WARPS, PITCH = ROUTE_ROWS + 1 };
enum { AT_ONCE = ROUTE_EXPERTS / 32 };  // experts of a lane whose logits are loaded at once

// Compute the logits of this block. Weights are loaded before the previous launch has ended. parts: shared memory.
__device__ __forceinline__ void
find_logits(float* parts, const storage* router, const storage* inputs, storage* logits, const ExpertRoute& p) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const i64 row = (i64)blockIdx.x * ROUTE_ROWS, first = (i64)blockIdx.y * COLUMNS;
    const int columns = (int)min((i64)COLUMNS, p.columns - first);
    // A row or column that does not exist repeats the last one. Its sums are not used.
    const storage *from_a[2], *from_b[GROUPS];
    for (int half = 0; half < 2; ++half) from_a[half] = router + min(row + 8 * half + g, p.experts - 1) * p.k + 8 * t;
    for (int group = 0; group < GROUPS; ++group)
        from_b[group] = inputs + (first + min(8 * group + g, columns - 1)) * p.ldb + 8 * t;
    enum { STEP = ROUTE_WARPS * TOGETHER * CHUNK };
    float sums[GROUPS][4] = {};
    uint4 x[TOGETHER][2];
    const auto load = [&](i64 k) {
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                x[i][half] = eight(from_a[half] + k + i * CHUNK, p.k - k - i * CHUNK - 8 * t);
    };
    load((i64)warp * TOGETHER * CHUNK);
    if (PDL) wait_for_earlier();
    for (i64 k = (i64)warp * TOGETHER * CHUNK; k < p.k; k += STEP) {
        uint4 y[TOGETHER][GROUPS];
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i)
#pragma unroll
            for (int group = 0; group < GROUPS; ++group)
                y[i][group] = eight(from_b[group] + k + i * CHUNK, p.k - k - i * CHUNK - 8 * t);
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i)
#pragma unroll
            for (int group = 0; group < GROUPS; ++group) {
                mma(sums[group], x[i][0].x, x[i][1].x, x[i][0].y, x[i][1].y, y[i][group].x, y[i][group].y);
                mma(sums[group], x[i][0].z, x[i][1].z, x[i][0].w, x[i][1].w, y[i][group].z, y[i][group].w);
            }
        if (k + STEP < p.k) load(k + STEP);
    }
#pragma unroll
    for (int group = 0; group < GROUPS; ++group)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            parts[(warp * COLUMNS + 8 * group + 2 * t + i % 2) * PITCH + g + i / 2 * 8] = sums[group][i];
    __syncthreads();
    for (int i = threadIdx.x; i < ROUTE_ROWS * columns; i += THREADS) {
        const int of_row = i % ROUTE_ROWS, column = i / ROUTE_ROWS;
        float sum = 0.0f;
        for (int each = 0; each < ROUTE_WARPS; ++each) sum += parts[(each * COLUMNS + column) * PITCH + of_row];
        if (row + of_row < p.experts) logits[(first + column) * p.ldc + row + of_row] = narrow(sum);
    }
}

// Words of shared memory for a number of each expert.
__device__ inline int padded(int experts) { return (experts + 32 * AT_ONCE - 1) / (32 * AT_ONCE) * (32 * AT_ONCE); }

// Choose the experts of a column, as TOP_K does (experts/routing.cuh); a warp calls this. own: shared memory, the scores and
// the logits of its experts. ids: shared memory, takes the chosen experts, ascending.
__device__ __forceinline__ void
choose(float* own, u32* ids, const storage* logits, const storage* bias, u32* row, const ExpertRoute& p) {
    const int lane = threadIdx.x % 32, experts = (int)p.experts, m = (int)p.top_k;
    float *scores = own, *values = own + padded(experts);
    u32* const sorted = (u32*)own;  // in place of the scores, once all experts are chosen
    u64 best = 0;  // largest key of this lane's experts that are not chosen
    for (int first = lane; first < experts; first += 32 * AT_ONCE) {
        storage value[AT_ONCE], added[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int at = min(first + 32 * i, experts - 1);
            value[i] = __ldcg(logits + at), added[i] = bias[at];
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {  // without conditions, so that all loads are on their way at once
            const int at = first + 32 * i;
            const float score = widen(value[i]) + widen(added[i]);
            values[at] = widen(value[i]), scores[at] = score;
            best = max(best, at < experts ? key_of(score, at) : 0);
        }
    }
    for (int count = 0; count < m; ++count) {
        const u32 high = __reduce_max_sync(0xFFFFFFFFu, (u32)(best >> 32));
        const u32 low = __reduce_max_sync(0xFFFFFFFFu, (u32)(best >> 32) == high ? (u32)best : 0u);
        const u64 winner = (u64)high << 32 | low;
        const u32 number = 0xFFFFFFFFu - low;
        if (lane == 0) ids[count] = number;
        if (number % 32 == lane) {
            u64 next = 0;
            for (int i = lane; i < experts; i += 32) {
                const u64 key = key_of(scores[i], i);
                if (key < winner) next = max(next, key);
            }
            best = next;
        }
    }
    __syncwarp();
    float top = values[ids[0]], sum = 0.0f;
    for (int i = lane; i < m; i += 32) top = fmaxf(top, values[ids[i]]);
    top = over_warp(top, [](float x, float y) { return fmaxf(x, y); });
    for (int i = lane; i < m; i += 32) sum += expf(values[ids[i]] - top);
    sum = over_warp(sum, [](float x, float y) { return x + y; });
    for (int i = lane; i < m; i += 32) {
        const u32 number = ids[i];
        int rank = 0;
        for (int other = 0; other < m; ++other) rank += ids[other] < number;
        row[rank] = number, sorted[rank] = number;
        row[m + rank] = __float_as_uint(expf(values[number] - top) / sum);
    }
    __syncwarp();
    for (int i = lane; i < m; i += 32) ids[i] = sorted[i];
}

// Make the map of all columns, the list of work, and the column of each row. masks: shared memory, for each expert a bit for
// each column; behind them the first row of each expert, and the number of its first piece. ids: the experts of all columns.
__device__ __forceinline__ void make_map(u32* masks, const u32* ids, u32* rows, const ExpertRoute& p) {
    const int lane = threadIdx.x % 32, experts = (int)p.experts, m = (int)p.top_k;
    const int words = ((int)p.columns + 31) / 32, entries = (int)p.columns * m;
    u32 *first = masks + experts * words, *piece = first + experts + 1, *sources = (u32*)p.sources;
    for (int i = threadIdx.x; i < experts * words; i += THREADS) masks[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < entries; i += THREADS) atomicOr(masks + ids[i] * words + i / m / 32, 1u << i / m % 32);
    __syncthreads();
    for (int i = threadIdx.x; i <= experts; i += THREADS) {
        u32 count = 0;
        for (int word = 0; word < words && i < experts; ++word) count += __popc(masks[i * words + word]);
        first[i] = count, piece[i] = (count + COLUMNS - 1) / COLUMNS;
    }
    __syncthreads();
    if (threadIdx.x < 32) {  // sums of the experts before each: every lane has neighbours
        const int each = (experts + 32) / 32, begin = min(lane * each, experts + 1), end = min(begin + each, experts + 1);
        u32 own = 0, own_pieces = 0;
        for (int i = begin; i < end; ++i) own += first[i], own_pieces += piece[i];
        u32 before = own, pieces = own_pieces;
        for (int step = 1; step < 32; step *= 2) {
            const int from = lane >= step ? lane - step : lane;
            const u32 other = __shfl_sync(0xFFFFFFFFu, before, from), more = __shfl_sync(0xFFFFFFFFu, pieces, from);
            if (lane >= step) before += other, pieces += more;
        }
        before -= own, pieces -= own_pieces;
        for (int i = begin; i < end; ++i) {
            const u32 count = first[i], of_expert = piece[i];
            first[i] = before, piece[i] = pieces;
            before += count, pieces += of_expert;
        }
    }
    __syncthreads();
    const u32 all = piece[experts];
    uint4* const list = (uint4*)p.work;
    for (int i = threadIdx.x; i <= experts; i += THREADS) {
        rows[entries + i] = first[i];
        if (i == experts) break;
        for (u32 number = piece[i], column = first[i]; number < piece[i + 1]; ++number, column += COLUMNS)
            list[number] = {(u32)i, column, min((u32)COLUMNS, first[i + 1] - column), all};
    }
    for (u32 i = all + threadIdx.x; i < (u32)p.most; i += THREADS) list[i] = {0, 0, 0, all};
    for (int i = threadIdx.x; i < entries; i += THREADS) {
        const u32 column = i / m, *const mask = masks + ids[i] * words;
        u32 row = first[ids[i]] + __popc(mask[column / 32] & ((1u << column % 32) - 1));
        for (u32 word = 0; word < column / 32; ++word) row += __popc(mask[word]);
        rows[i] = row, sources[row] = column;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) expert_route(char* a, char* b, char* c, char* d, const ExpertRoute p) {
    extern __shared__ u32 memory[];
    if (PDL) let_next_begin();
    Operands of = {a, b, c, d};
    find(of, p, true);
    u32 *const counters = (u32*)p.counters, *const ids = memory + p.ids_at;
    const int warp = threadIdx.x / 32, m = (int)p.top_k;
    find_logits((float*)memory, (const storage*)of.a, (const storage*)of.b, (storage*)of.c, p);
    if (!is_last(counters + 1 + blockIdx.y, gridDim.x)) return;
    const i64 first = (i64)blockIdx.y * COLUMNS, end = min(first + COLUMNS, p.columns);
    for (i64 j = first + warp; j < end; j += ROUTE_WARPS) {
        const storage *logits = (const storage*)of.c + j * p.ldc, *bias = (const storage*)of.d + j * p.lda;
        float* const own = (float*)memory + 2 * padded((int)p.experts) * warp;
        choose(own, ids + j * m, logits, bias, (u32*)(of.c + p.table_at + j * p.table_step), p);
    }
    __syncthreads();
    if (gridDim.y > 1 && !is_last(counters, gridDim.y)) return;
    for (int i = threadIdx.x; i < (int)p.columns * m; i += THREADS)  // the groups of other blocks
        if (i < first * m || i >= end * m) ids[i] = __ldcg((const u32*)(of.c + p.table_at + i / m * p.table_step) + i % m);
    __syncthreads();
    make_map(memory, ids, (u32*)(of.c + p.map_at), p);
    if (STEPPED && threadIdx.x == 0) {  // all blocks have read the number of this step
        const u64 step = load_relaxed((const u64*)p.state);
        store_relaxed(p.state + 8, step), store_relaxed(p.state, step + 1);
    }
}
