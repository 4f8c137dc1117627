// 16 rows of A times up to 16 columns of B on the tensor cores, for fp16 and bf16: what skinny.cuh does for few columns.
//
// mma.m16n8k16 wants, of thread 4 g + t, A at rows g and g + 8 and B at column g, at k = 2t, 2t + 1 and 8 more. Which k is
// which does not matter as long as A and B agree: here a thread takes 8 neighbours of 32, k = 8t to 8t + 7, in one load,
// and uses them in two products. The warps of a group share k and add up what they have.
#if DTYPE != 0
enum { MMA_ROWS = 16, MMA_CHUNK = 32 };

__device__ inline void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if DTYPE == 1
#define MMA_TYPES "f32.f16.f16.f32"
#else
#define MMA_TYPES "f32.bf16.bf16.f32"
#endif
    asm("mma.sync.aligned.m16n8k16.row.col." MMA_TYPES " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ inline void mma_twice(float (&c)[4], const uint4& upper, const uint4& lower, const uint4& x) {
    mma(c, upper.x, lower.x, upper.y, lower.y, x.x, x.y);
    mma(c, upper.z, lower.z, upper.w, lower.w, x.z, x.w);
}

// Rows and columns must be aligned to 16 bytes. part: float [GROUP_WARPS][MMA_ROWS][MOST_COLUMNS].
__device__ inline void rows_by_mma(
    const Rows& t, const Shape& s, int warp, int lane, int group, float (*part)[MMA_ROWS][MOST_COLUMNS]) {
    const int g = lane / 4, quarter = lane % 4, last = (int)s.columns - 1;
    const storage* upper = t.weights + min(g, t.rows - 1) * s.row_elements;
    const storage* lower = t.weights + min(g + 8, t.rows - 1) * s.row_elements;
    const storage* left = t.inputs + min(g, last) * s.column_elements;
    const storage* right = t.inputs + min(g + 8, last) * s.column_elements;
    float sums[2][4] = {};
    const int chunks = (int)((s.k + MMA_CHUNK - 1) / MMA_CHUNK);
#pragma unroll 4
    for (int chunk = warp; chunk < chunks; chunk += GROUP_WARPS) {
        const i64 at = (i64)chunk * MMA_CHUNK + quarter * WIDTH, rest = s.k - at;
        const bool all = rest >= WIDTH;
        const uint4 a0 = all ? read_once(upper + at) : read(upper + at, rest, false).whole;
        const uint4 a1 = all ? read_once(lower + at) : read(lower + at, rest, false).whole;
        mma_twice(sums[0], a0, a1, read(left + at, rest, true).whole);
        if (s.columns > 8) mma_twice(sums[1], a0, a1, read(right + at, rest, true).whole);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 4; ++i) part[warp][g + i / 2 * 8][half * 8 + quarter * 2 + i % 2] = sums[half][i];
    group_barrier(group);
    const int row = (32 * warp + lane) / MOST_COLUMNS, column = lane % MOST_COLUMNS;
    if (row >= t.rows || column > last) return;
    float sum = 0.0f;
    for (int i = 0; i < GROUP_WARPS; ++i) sum += part[i][row][column];
    t.outputs[row * s.row_step + column * s.column_step] = narrow(sum);
}
#endif
