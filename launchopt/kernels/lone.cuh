// A small command that comes alone, done by the dispatcher's group (dispatcher.cuh). Its time is that of a round trip, so
// there is as little to find out as can be: what a shape is like is found once, and all others are handed out.
#ifndef LONE_LANES
#define LONE_LANES 8
#endif
enum { LONE_ROWS = 2, LONE_VECTORS = 256 };  // of a warp at once; the longest k

// A shape of one column and whole vectors. No vectors: it is handed out.
struct __align__(16) Lone {
    u32 rows, vectors, row_bytes, step_bytes;
};
struct Single {
    Lone like;
    u64 a, b, c;
};
__device__ inline Lone lone_of(const Shape& s) {
    const i64 vector = WIDTH, bytes = s.rows * s.k * (i64)sizeof(storage);
    if (s.columns > 1 || bytes > (i64)queue.direct_bytes || s.k > LONE_VECTORS * vector) return {};
    if (s.k % vector || s.row_elements % vector) return {};
    const i64 row_bytes = s.row_elements * (i64)sizeof(storage), step_bytes = s.row_step * (i64)sizeof(storage);
    if ((row_bytes | step_bytes) >> 32) return {};
    return {(u32)s.rows, (u32)(s.k / vector), (u32)row_bytes, (u32)step_bytes};
}

// The sums of N rows over LANES lanes beside each other: the N-th parts of these have a row each then, in sums[0]. Each step
// adds lanes up; while a lane has several rows, it gives half of them away.
template <int LANES, int N> __device__ inline void add_lanes(float (&sums)[N][1], int lane) {
#pragma unroll
    for (int half = N / 2, step = LANES / 2; half; half /= 2, step /= 2)
#pragma unroll
        for (int r = 0; r < half; ++r) {
            const float above = sums[r + half][0], below = sums[r][0];
            sums[r][0] = (lane & step ? above : below) + __shfl_xor_sync(0xFFFFFFFFu, lane & step ? below : above, step);
        }
#pragma unroll
    for (int step = LANES / N / 2; step; step /= 2) sums[0][0] += __shfl_xor_sync(0xFFFFFFFFu, sums[0][0], step);
}

// Whether a warp alone has it all in its registers.
enum { SMALL_ROWS = OUTPUT_WORDS, SMALL_VECTORS = 16 };
__device__ inline bool is_small(const Lone& s) { return s.rows <= SMALL_ROWS && s.vectors <= SMALL_VECTORS; }

// C = A B^T of one column and few rows, by one warp: LANES of it beside each other have ROWS rows, and each lane EACH vectors
// of all these. All is asked for at once; what lies beyond the last row or vector is that one, again. The host is told each
// output, with `stamp` above it, before it is stored: what is told next of the command is that it is.
__device__ inline void multiply_small(const Single& s, u64* told, u32 stamp, int lane) {
    enum { LANES = LONE_LANES, ROWS = SMALL_ROWS * LANES / 32, EACH = SMALL_VECTORS / LANES };
    const u32 first = lane / LANES * ROWS, last = s.like.rows - 1;
    u32 at[EACH];
    uint4 x[EACH], rows[ROWS][EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) at[i] = min(lane % LANES + i * LANES, s.like.vectors - 1) * 16;
#pragma unroll
    for (int i = 0; i < EACH; ++i) x[i] = input_vector<true>((const storage*)(s.b + at[i]));
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const u64 row = s.a + (u64)min(first + r, last) * s.like.row_bytes;
#pragma unroll
        for (int i = 0; i < EACH; ++i) rows[r][i] = read_once((const storage*)(row + at[i]));
    }
    __syncwarp();  // as in `add_vectors`
    float sums[ROWS][1] = {};
#pragma unroll
    for (int i = 0; i < EACH; ++i)
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            if (lane % LANES + i * LANES < s.like.vectors) sums[r][0] = add_product(sums[r][0], rows[r][i], x[i]);
    add_lanes<LANES>(sums, lane);
    const u32 own = first + lane % LANES / (LANES / ROWS);
    if (lane % (LANES / ROWS) == 0 && own <= last) {
        const storage output = narrow(sums[0][0]);
        store_system(told + own, (u64)stamp << 32 | __float_as_uint(widen(output)));
        *(storage*)(s.c + (u64)own * s.like.step_bytes) = output;
    }
}

// C = A B^T of one column, by the group: LONE_ROWS rows a warp at once.
__device__ inline void multiply(const Single& single, int warp, int lane) {
    enum { LANES = 32 / LONE_ROWS };  // that have a sum, in the end
    const Lone& s = single.like;
#pragma unroll 1
    for (u32 row = warp * LONE_ROWS; row < s.rows; row += GROUP_WARPS * LONE_ROWS) {
        const storage* rows[LONE_ROWS];
#pragma unroll
        for (int r = 0; r < LONE_ROWS; ++r)
            rows[r] = (const storage*)(single.a + (u64)min(row + r, s.rows - 1) * s.row_bytes);
        float sums[LONE_ROWS][1] = {};
        add_vectors<true, LONE_ROWS>(sums, rows, (const storage*)single.b, (int)s.vectors, lane, 32);
        add_lanes<32>(sums, lane);
        const u32 own = row + lane / LANES;
        if (lane % LANES == 0 && own < s.rows) *(storage*)(single.c + (u64)own * s.step_bytes) = narrow(sums[0][0]);
    }
}
