// Operations of a layer with experts, but for its GEMMs (launchopt/streams/experts/layout.py). They have one command for each
// launch.
//
// A table has a row per column: the numbers of its m experts, int32 in ascending order, then their weights, fp32. A map has the
// row of each expert of each column, int32 [n][m], if rows are sorted by expert and column; then the first row of each expert,
// and the end of the last one. Numbers beyond the experts or rows come only from memory that no command has written, after a
// fault in the order. They are never used as an index.

#include "shared/experts.cuh"
#include "experts/choice.cuh"

// The experts of a column with the largest sum of logit B and selection bias A, and the softmax of their logits. Grid: one
// block of one warp per column. Shared memory: fp32 [k], then int32 [m].
OP(TOP_K) {
    extern __shared__ float scores[];
    const i64 j = blockIdx.x;
    const int lane = threadIdx.x, k = (int)p.k, m = (int)p.m;
    const storage *logits = B_OF + j * p.ldb, *bias = A_OF + j * p.lda;
    u32* chosen = (u32*)(scores + k);
    u32* row = (u32*)(C_OF + j * p.ldc);
    u64 best = 0;  // largest key of this lane's experts that are not chosen
    for (int i = lane; i < k; i += 32) {
        scores[i] = widen(logits[i]) + widen(bias[i]);
        best = max(best, key_of(scores[i], i));
    }
    for (int count = 0; count < m; ++count) {
        const u64 winner = over_warp(best, [](u64 x, u64 y) { return max(x, y); });
        const u32 number = 0xFFFFFFFFu - (u32)winner;
        if (number % 32 == lane) {
            chosen[count] = number;
            u64 next = 0;
            for (int i = lane; i < k; i += 32) {
                const u64 key = key_of(scores[i], i);
                if (key < winner) next = max(next, key);
            }
            best = next;
        }
    }
    __syncwarp();
    float top = widen(logits[chosen[0]]), sum = 0.0f;
    for (int i = lane; i < m; i += 32) top = fmaxf(top, widen(logits[chosen[i]]));
    top = over_warp(top, [](float x, float y) { return fmaxf(x, y); });
    for (int i = lane; i < m; i += 32) sum += expf(widen(logits[chosen[i]]) - top);
    sum = over_warp(sum, [](float x, float y) { return x + y; });
    for (int i = lane; i < m; i += 32) {
        int rank = 0;
        for (int other = 0; other < m; ++other) rank += chosen[other] < chosen[i];
        row[rank] = chosen[i];
        row[m + rank] = __float_as_uint(expf(widen(logits[chosen[i]]) - top) / sum);
    }
}

// The map of a table B. Grid: one block. Shared memory: u32 [k + 1]. A warp gives the rows of an expert to columns, 32 entries
// of the table at a time, so that they are in the order of columns.
OP_OF(EXPERT_MAP, MAP_THREADS, 1) {
    extern __shared__ u32 first[];  // columns of each expert; later the row of its first column
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = (int)p.k, m = (int)p.m, entries = (int)p.n * m;
    const char* table = (const char*)B_OF;
    const i64 pitch = p.ldb * (i64)sizeof(storage);
    u32* rows = (u32*)C_OF;
    const auto expert_of = [&](int entry) { return *(const u32*)(table + entry / m * pitch + entry % m * 4); };
    for (int i = threadIdx.x; i <= k; i += blockDim.x) first[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < entries; i += blockDim.x) {
        const u32 expert = expert_of(i);
        if (expert < k) atomicAdd(first + expert, 1u);
    }
    __syncthreads();
    if (warp == 0) {  // sums of the experts before each: every lane has neighbours
        const int each = (k + 32) / 32, begin = min(lane * each, k + 1), end = min(begin + each, k + 1);
        u32 own = 0;
        for (int i = begin; i < end; ++i) own += first[i];
        u32 before = own;
        for (int step = 1; step < 32; step *= 2) {
            const u32 other = __shfl_sync(0xFFFFFFFFu, before, lane >= step ? lane - step : lane);
            if (lane >= step) before += other;
        }
        before -= own;
        for (int i = begin; i < end; ++i) {
            const u32 count = first[i];
            first[i] = before;
            rows[entries + i] = before;
            before += count;
        }
    }
    __syncthreads();
    for (int expert = warp; expert < k; expert += blockDim.x / 32) {
        u32 row = first[expert];
        if (row == first[expert + 1]) continue;
        for (int start = 0; start < entries; start += 32) {
            const int entry = start + lane;
            const bool is_own = entry < entries && expert_of(entry) == expert;
            const u32 found = __ballot_sync(0xFFFFFFFFu, is_own);
            if (is_own) rows[entry] = row + __popc(found & ((1u << lane) - 1));
            row += __popc(found);
        }
    }
}

// Copy each column of B to its rows of C, by the map A. Grid: x over features, y over rows of the map.
OP(PERMUTE) {
    const u32* rows = (const u32*)A_OF;
    const i64 of_column = p.m / p.k, total = p.n * of_column;
    const Share share(blockIdx.x, p.k, aligned(B_OF, p.ldb) && aligned(C_OF, p.ldc));
    if (share.empty()) return;
    for (i64 i = blockIdx.y; i < total; i += gridDim.y) {
        const u32 row = rows[i];
        if (row >= total) continue;
        const storage* from = B_OF + i / of_column * p.ldb;
        storage* to = C_OF + row * p.ldc;
        if (share.at_once()) {
            *(uint4*)(to + share.first) = *(const uint4*)(from + share.first);
            continue;
        }
        for (int part = 0; part < WIDTH; ++part) {
            const i64 at = share.first + (i64)part * share.step;
            if (at < share.end) to[at] = from[at];
        }
    }
}

// The sum of each column's rows of B, with its weights, by the table A and the map behind it. Grid: x over features, y over
// columns.
OP(COMBINE) {
    const i64 of_column = p.k / p.m, total = p.n * of_column;
    const storage* table = A_OF;
    const u32* rows = (const u32*)(table + p.n * p.lda);
    const Share share(blockIdx.x, p.m, aligned(B_OF, p.ldb) && aligned(C_OF, p.ldc));
    if (share.empty()) return;
    for (i64 j = blockIdx.y; j < p.n; j += gridDim.y) {
        const float* weights = (const float*)(table + j * p.lda) + of_column;
        float sums[WIDTH] = {}, x[WIDTH];
        for (i64 i = 0; i < of_column; ++i) {
            const u32 row = rows[j * of_column + i];
            if (row >= total) continue;
            load(x, B_OF + row * p.ldb, share);
#pragma unroll
            for (int part = 0; part < WIDTH; ++part) sums[part] += weights[i] * x[part];
        }
        store(C_OF + j * p.ldc, share, sums);
    }
}
