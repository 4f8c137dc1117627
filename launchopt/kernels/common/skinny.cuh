// GEMMs of few columns: C[j][r] = sum over k of A[r][k] * B[j][k], accumulated in fp32. A group of GROUP_WARPS warps multiplies
// some rows r by up to MOST_COLUMNS columns j; the group has a named barrier of its own. Each element of A, a weight, is read
// once from memory. The elements of B, the inputs, are read repeatedly: from the L1 cache, or from the L2 cache if the tile has
// fewer rows than the group has warps (FRESH).
//
// If B has more rows than A, the host exchanges A with B, and `row_step` with `column_step`.
#include "shared/skinny.cuh"

// A tile of such a GEMM: addresses of its first row of A, of B and of its first row of C; its number of rows.
struct Rows {
    const storage *weights, *inputs;
    storage* outputs;
    int rows;
};

__device__ inline void group_barrier(int group) {
    asm volatile("barrier.sync %0, %1;" ::"r"(group + 1), "n"(32 * GROUP_WARPS) : "memory");
}

// Load a vector, or an element, of B. FRESH: bypass the L1 cache, which may hold stale data.
template <bool FRESH> __device__ inline uint4 input_vector(const storage* from) {
    return FRESH ? __ldcg((const uint4*)from) : *(const uint4*)from;
}
template <bool FRESH> __device__ inline float input(const storage* from) {
    return widen(FRESH ? __ldcg(from) : *from);
}

// Return `sum` plus the products of the elements of two words or vectors. Halves are unpacked where they are multiplied: the
// registers could not hold all of them unpacked.
__device__ inline float add_product(float sum, u32 a, u32 b) {
#if DTYPE == 0
    return sum + __uint_as_float(a) * __uint_as_float(b);
#else
    sum += widen((storage)a) * widen((storage)b);
    return sum + widen((storage)(a >> 16)) * widen((storage)(b >> 16));
#endif
}
__device__ inline float add_product(float sum, const uint4& a, const uint4& b) {
    return add_product(add_product(add_product(add_product(sum, a.x, b.x), a.y, b.y), a.z, b.z), a.w, b.w);
}

// Add to `sums` the products of R rows and one column. The lane multiplies vectors `first`, `first` + `step` and so on. It
// loads several vectors before it multiplies the first one. All lanes of a warp call this together.
template <bool FRESH, int R>
__device__ inline void add_vectors(
    float (&sums)[R][1], const storage* const (&rows)[R], const storage* inputs, int vectors, int first, int step) {
    enum { AT_A_TIME = R < 4 ? 4 / R : 1 };
#pragma unroll 1
    for (; (first & ~31) < vectors; first += AT_A_TIME * step) {
        uint4 a[AT_A_TIME][R] = {}, x[AT_A_TIME] = {};
#pragma unroll
        for (int i = 0; i < AT_A_TIME; ++i) {
            const int at = first + i * step;
            if (at < vectors) x[i] = input_vector<FRESH>(inputs + (i64)at * WIDTH);
#pragma unroll
            for (int r = 0; r < R; ++r)
                if (at < vectors) a[i][r] = read_once(rows[r] + (i64)at * WIDTH);
        }
        __syncwarp();  // prevents the compiler from multiplying before all loads are issued
#pragma unroll
        for (int i = 0; i < AT_A_TIME; ++i)
#pragma unroll
            for (int r = 0; r < R; ++r) sums[r][0] = add_product(sums[r][0], a[i][r], x[i]);
    }
}

// Add to `sums` the products of R rows and N columns, and then add up the sums over the lanes of the warp. The lane multiplies
// every `step`-th vector from `first` on, and then elements behind the last whole vector. whole: rows are aligned to vectors.
template <bool FRESH, int N, int R>
__device__ inline void add_products(
    float (&sums)[R][N], const storage* const (&rows)[R], const Rows& t, const Shape& s, int first, int step, bool whole) {
    const int vectors = whole ? (int)(s.k / WIDTH) : 0, last = (int)s.columns - 1;
    if constexpr (N == 1) {
        add_vectors<FRESH, R>(sums, rows, t.inputs, vectors, first, step);
    } else {
#pragma unroll(N > 2 ? 1 : 2)
        for (int at = first; at < vectors; at += step) {
            uint4 a[R];
#pragma unroll
            for (int r = 0; r < R; ++r) a[r] = read_once(rows[r] + (i64)at * WIDTH);
#pragma unroll
            for (int j = 0; j < N; ++j) {
                const uint4 x = input_vector<FRESH>(t.inputs + min(j, last) * s.column_elements + (i64)at * WIDTH);
#pragma unroll
                for (int r = 0; r < R; ++r) sums[r][j] = add_product(sums[r][j], a[r], x);
            }
        }
    }
    for (i64 at = (i64)vectors * WIDTH + first; at < s.k; at += step)
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const float x = input<FRESH>(t.inputs + min(j, last) * s.column_elements + at);
#pragma unroll
            for (int r = 0; r < R; ++r) sums[r][j] += widen(rows[r][at]) * x;
        }
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
        for (int j = 0; j < N; ++j)
            for (int bit = 16; bit; bit >>= 1) sums[r][j] += __shfl_xor_sync(0xFFFFFFFFu, sums[r][j], bit);
}

// Multiply a tile, with up to N columns. Each warp multiplies R rows at once, which no other warp shares.
template <int N, int R>
__device__ inline void rows_apart(const Rows& t, const Shape& s, int warp, int lane, bool whole) {
    for (int row = warp * R; row < t.rows; row += GROUP_WARPS * R) {
        const storage* rows[R];
#pragma unroll
        for (int r = 0; r < R; ++r) rows[r] = t.weights + min(row + r, t.rows - 1) * s.row_elements;
        float sums[R][N] = {};
        add_products<false, N, R>(sums, rows, t, s, lane, 32, whole);
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
            for (int j = 0; j < N; ++j)
                if (lane == (r * N + j) % 32 && j < s.columns && row + r < t.rows)
                    t.outputs[(row + r) * s.row_step + j * s.column_step] = narrow(sums[r][j]);
    }
}

// Multiply a tile with fewer rows than warps: 1, 2, 4 or 8 warps share a row. part: shared memory for sums of each warp.
template <int N>
__device__ inline void rows_shared(
    const Rows& t, const Shape& s, int warp, int lane, bool whole, int group, float (*part)[MOST_COLUMNS]) {
    const int share = t.rows > 4 ? 1 : t.rows > 2 ? 2 : t.rows > 1 ? 4 : 8, row = warp / share;
    const storage* const rows[1] = {t.weights + min(row, t.rows - 1) * s.row_elements};
    float sums[1][N] = {};
    if (row < t.rows) add_products<true, N, 1>(sums, rows, t, s, warp % share * 32 + lane, 32 * share, whole);
#pragma unroll
    for (int j = 0; j < N; ++j)
        if (lane == j) part[warp][j] = sums[0][j];
    group_barrier(group);
    if (row >= t.rows || warp % share != 0 || lane >= s.columns) return;
    float sum = 0.0f;
    for (int i = 0; i < share; ++i) sum += part[warp + i][lane];
    t.outputs[row * s.row_step + lane * s.column_step] = narrow(sum);
}

template <int N>
__device__ __noinline__ void multiply_columns(
    const Rows& t, const Shape& s, int warp, int lane, int group, float (*part)[MOST_COLUMNS]) {
    enum { R = N <= 4 ? 2 : 1 };
    const bool whole = aligned(t.weights, s.row_elements) && aligned(t.inputs, s.column_elements);
    if (t.rows < GROUP_WARPS) rows_shared<N>(t, s, warp, lane, whole, group, part);
    else if (t.rows < GROUP_WARPS * R) rows_apart<N, 1>(t, s, warp, lane, whole);
    else rows_apart<N, R>(t, s, warp, lane, whole);
}

__device__ inline void one_column(
    const Rows& t, const Shape& s, int warp, int lane, int group, float (*part)[MOST_COLUMNS]) {
    const bool whole = aligned(t.weights, s.row_elements) && aligned(t.inputs);
    if (t.rows < GROUP_WARPS) rows_shared<1>(t, s, warp, lane, whole, group, part);
    else if (t.rows <= GROUP_WARPS) rows_apart<1, 1>(t, s, warp, lane, whole);
    else if (t.rows <= 2 * GROUP_WARPS) rows_apart<1, 2>(t, s, warp, lane, whole);
    else rows_apart<1, 4>(t, s, warp, lane, whole);
}

// Multiply a tile. All warps of a group call this. If the tile has fewer rows than the group has warps, the loads of B bypass
// the L1 cache (FRESH).
__device__ inline void multiply(
    const Rows& t, const Shape& s, int warp, int lane, int group, float (*part)[MOST_COLUMNS]) {
    const int n = (int)s.columns;
    if (n == 1) one_column(t, s, warp, lane, group, part);
    else if (n == 2) multiply_columns<2>(t, s, warp, lane, group, part);
    else if (n <= 4) multiply_columns<4>(t, s, warp, lane, group, part);
    else if (n <= 8) multiply_columns<8>(t, s, warp, lane, group, part);
    else multiply_columns<16>(t, s, warp, lane, group, part);
}
