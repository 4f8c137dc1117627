// The results of a pass of a block (step_gemm.cu), which its threads share.

// The results that this thread finishes: two columns of rows g and g + 8 of a tile, which are in different halves.
struct Results {
    int tile, group, at, column;
    __device__ Results()
        : tile(threadIdx.x / OF_TILE), group(threadIdx.x / RESULTS % GROUPS), at(threadIdx.x % RESULTS),
          column(8 * group + at % LANES * 2) {}
    __device__ bool exist(u32 here) const { return tile < AT_ONCE && 2 * tile < here; }
    // Return whether half j of the tile exists. here: number of halves.
    __device__ bool has(int j, u32 here) const { return 2 * tile + j < here; }
    __device__ u32 row(u32 half, int j, const StepGemm& p) const { return row_of(half + 2 * tile + j, p) + at / LANES; }
};
// Elements of R that are added to a thread's results, in the order of its sums.
struct Added {
    storage of[4];
    __device__ void load(const Results& own, u32 half, u32 here, const char* r, const StepGemm& p) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 row = own.row(half, i / 2, p);
            const bool exists = own.exist(here) && own.has(i / 2, here) && row < p.rows && own.column + i % 2 < p.columns;
            of[i] = exists ? __ldcg((const storage*)(r + (own.column + i % 2) * p.r_step) + row) : (storage)0;
        }
    }
};
// Scales of the two rows of a thread's results, for scales per channel or tensor.
struct RowScales {
    float of[2];
    __device__ void load(const Results& own, u32 half, u32 here, const char* scales, const StepGemm& p) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const u32 row = own.row(half, j, p);
            const bool exists = own.exist(here) && own.has(j, here) && row < p.rows;
            of[j] = exists ? widen_scale(scale_of(scales, weight_row(row, half + 2 * own.tile + j, p), 0, p.across)) : 0.0f;
        }
    }
};
// What a thread's results are finished with.
struct AtEnd {
    Added added;
    RowScales scales;
    __device__ void load(const Results& own, u32 half, u32 here, const char* r, const char* a, const StepGemm& p) {
        if (ADDS) added.load(own, half, here, r, p);
        if (BY_ROW) scales.load(own, half, here, a + p.scales_at, p);
    }
    __device__ float scale(int j) const { return BY_ROW ? scales.of[j] : 1.0f; }
};
