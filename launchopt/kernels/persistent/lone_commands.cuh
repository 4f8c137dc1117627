// Short commands that come alone. The dispatcher's group multiplies them (persistent/dispatcher.cuh); one warp multiplies the
// smallest (persistent/small_commands.cuh). The bus takes most of the time of such a command, so the kernel loads as little
// else as possible. It classifies each shape once, at the start. The dispatcher hands out commands of all other shapes.
enum { LONE_ROWS = 2, LONE_VECTORS = 256 };  // rows that a warp multiplies at once; most vectors of k

// A shape of one column whose rows consist of whole vectors of 16 bytes.
struct __align__(16) Lone {
    // Rows of C. Vectors of k, or 0 if the dispatcher hands out commands of the shape. Bytes from one row of A to the next.
    // Bytes from one output to the next.
    u32 rows, vectors, row_bytes, step_bytes;
};
// A command and its shape. a, b, c: addresses of its operands.
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

// Add up the sums of N rows over LANES neighbouring lanes. At the end each group of LANES / N lanes has the total of one row,
// in sums[0]. While a lane has several rows, each step sends half of them to another lane.
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

// Multiply C = A B^T for one column. All warps of the group call this; a warp multiplies LONE_ROWS rows at once.
__device__ inline void multiply(const Single& single, int warp, int lane) {
    enum { LANES = 32 / LONE_ROWS };  // lanes that have the same total at the end
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
