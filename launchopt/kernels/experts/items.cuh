// Items of expert_fused.cu, and a thread's weights of them in registers.

// An item: its work, and its first row of the results.
struct Item {
    Work work;
    i64 row;
    __device__ i64 weight_row(int row_of_item, const ExpertFused& p) const {
        // A row that does not exist repeats the last one.
        const i64 at = min(row + (GATED ? row_of_item % 16 : row_of_item), p.m - 1);
        return GATED && row_of_item >= 16 ? p.m + at : at;
    }
};
__device__ __forceinline__ Item item_of(u32 number, const char* d, const ExpertFused& p) {
    const u32 piece = number / (u32)p.tiles;
    Item item;
    item.row = (i64)(number - piece * (u32)p.tiles) * OUT_ROWS;
    if (LISTED) {
        uint4 found = {0, 0, 0, 0};
        if (piece < p.most) found = load_relaxed(p.work + 16 * (u64)piece);
        item.work = {(int)found.x, (int)found.y, (int)found.z, (int)found.w};
    } else {
        item.work = work_of<COLUMNS>((const u32*)(d + p.first_at), piece, (int)p.experts, (u32)p.columns);
    }
    return item;
}

// A thread's weights of the chunks that come next.
struct Weights {
    const ExpertFused& p;
    const char* from[TILES][2];
    uint4 of[TOGETHER][TILES][2];
    // Turn to an item.
    __device__ __forceinline__ void begin(const Item& item, const char* a) {
        const char* const own = a + item.work.expert * p.stride_a;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const i64 row = item.weight_row(16 * tile + 8 * half + threadIdx.x % 32 / 4, p);
                from[tile][half] = own + (row * p.k + threadIdx.x % 4 * VECTOR) * CODE_BITS / 8;
            }
    }
    // Load the vectors of chunk i. at: its first weight in a row. Beyond the row they are 0.
    __device__ __forceinline__ void load(int i, i64 at) {
        const i64 left = p.k - at - threadIdx.x % 4 * VECTOR;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const char* const vector = from[tile][half] + at * CODE_BITS / 8;
                uint4& to = of[i][tile][half];
                if (!WHOLE) to = eight((const storage*)vector, left);
                else if (EVEN || left > 0) to = read_once(vector);
                else to = {0, 0, 0, 0};
            }
    }
};

// Return the first weight of chunk i of this warp in a round.
__device__ __forceinline__ i64 place(int round, int i) {
    return (((i64)round * WARPS + threadIdx.x / 32) * TOGETHER + i) * CHUNK;
}
