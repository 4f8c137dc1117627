// The products of a decode step's attention for halves, by tensor cores (step_attention.cu). Threads of a warp are numbered
// 4 g + t, as in `mma`.
//
// Scores are a product of queries by keys: a row is query g, a column is a token. A thread gets the scores of query g and
// tokens 8 i + 2 t and 8 i + 2 t + 1 of the tile. So it has the probabilities that it needs for the second product, of values
// by probabilities: a row is a feature, a column is query g. Rows without a query repeat the last one.
struct Products {
    enum { KEY_VECTORS = VECTORS / 4, EIGHTS = TILE / 8, FEATURES = VECTORS / 2 };
    uint4 keys[EIGHTS][KEY_VECTORS];  // every fourth vector, from vector t on, of the key of token 8 i + g
    uint4 values[8];  // for each lot, vector g, and with 128 features vector 8 + g, of four tokens (`token`)
    u32 powers[EIGHTS];  // pairs of probabilities, relative to the largest score so far
    float most, sum;  // of query g; each thread has the sum of its own tokens
    // Weighted values for queries 2 t and 2 t + 1: of feature i of vector g, and of one half a product's rows further.
    float mixed[FEATURES][4];

    __device__ Products() : most(-__uint_as_float(0x7F800000u)), sum(0.0f), mixed() {}
    __device__ int g() const { return threadIdx.x % 32 / 4; }
    __device__ int t() const { return threadIdx.x % 4; }
    // Return a token of a lot: the thread's four tokens are those whose scores it has.
    __device__ int token(int i) const { return i / 2 * 8 + 2 * t() + i % 2; }

    __device__ void look_at_keys(const Cache& cache, const Tile& tile) {
        if (tile.first >= cache.earlier) return;
#pragma unroll
        for (int i = 0; i < EIGHTS; ++i)
#pragma unroll
            for (int v = 0; v < KEY_VECTORS; ++v) keys[i][v] = tile.load(cache, tile.first + 8 * i + g(), 0, 4 * v + t());
    }
    __device__ void look_at_values(const Cache& cache, const Tile& tile) {
        if (tile.first >= cache.earlier) return;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int lot = LOTS == 1 ? 0 : i / 4, vector = LOTS == 1 ? i / 4 * 8 : 0;
            values[i] = tile.load(cache, tile.first + lot * LOT + token(i % 4), 1, vector + g());
        }
    }
    // Compute the scores of a tile and turn them into powers. first: the tile's first token. Keys and values of tokens from
    // `earlier` on are fresh. Tokens from `end` on do not count.
    __device__ void score(const Fresh& fresh, int first, int earlier, int end) {
        if (ROPE && first + TILE > earlier) {
#pragma unroll
            for (int i = 0; i < EIGHTS; ++i)
#pragma unroll
                for (int v = 0; v < KEY_VECTORS; ++v)
                    if (first + 8 * i + g() >= earlier) keys[i][v] = fresh.rows[GROUP][4 * v + t()];
        }
        const float none = -__uint_as_float(0x7F800000u), scale = 1.4426950408889634f / sqrtf((float)HEAD_DIM);
        float found[EIGHTS][4] = {}, largest = most;
#pragma unroll
        for (int v = 0; v < KEY_VECTORS; ++v) {
            const uint4 x = fresh.rows[min(g(), GROUP - 1)][4 * v + t()];
#pragma unroll
            for (int i = 0; i < EIGHTS; ++i) {
                mma(found[i], x.x, 0, x.y, 0, keys[i][v].x, keys[i][v].y);
                mma(found[i], x.z, 0, x.w, 0, keys[i][v].z, keys[i][v].w);
            }
        }
#pragma unroll
        for (int i = 0; i < EIGHTS; ++i)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                found[i][e] = first + 8 * i + 2 * t() + e < end ? found[i][e] * scale : none;
                largest = fmaxf(largest, found[i][e]);
            }
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
        if (__any_sync(0xFFFFFFFFu, largest != most)) {
            const float factor = exp2f(most - largest);
            const float one = __shfl_sync(0xFFFFFFFFu, factor, 8 * t()), other = __shfl_sync(0xFFFFFFFFu, factor, 8 * t() + 4);
            sum *= factor, most = largest;
#pragma unroll
            for (int i = 0; i < FEATURES; ++i)
                mixed[i][0] *= one, mixed[i][1] *= other, mixed[i][2] *= one, mixed[i][3] *= other;
        }
#pragma unroll
        for (int i = 0; i < EIGHTS; ++i) {
            const float one = exp2f(found[i][0] - most), other = exp2f(found[i][1] - most);
            sum += one + other, powers[i] = narrow_two(one, other);
        }
    }
    // Weight the values of a tile by the powers.
    __device__ void mix(const Fresh& fresh, int first, int earlier) {
        if (first + TILE > earlier) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int lot = LOTS == 1 ? 0 : i / 4, vector = LOTS == 1 ? i / 4 * 8 : 0;
                if (first + lot * LOT + token(i % 4) >= earlier)
                    values[i] = ROPE ? fresh.rows[GROUP + 1][vector + g()] : uint4{0, 0, 0, 0};
            }
        }
#pragma unroll
        for (int lot = 0; lot < LOTS; ++lot)
#pragma unroll
            for (int i = 0; i < FEATURES; ++i) {
                const uint4* const upper = values + 4 * lot;
                // The lower rows: the same feature of the second vector, or a feature of the second half of the vector.
                const uint4* const lower = LOTS == 1 ? values + 4 : upper;
                const int below = LOTS == 1 ? i : i + 4;
                mma(mixed[i], joined(upper[0], upper[1], i), joined(lower[0], lower[1], below), joined(upper[2], upper[3], i),
                    joined(lower[2], lower[3], below), powers[2 * lot], powers[2 * lot + 1]);
            }
    }
    // Return element i of two vectors in one word.
    __device__ static u32 joined(const uint4& first, const uint4& second, int i) {
        const u32 one = word(first, i / 2), other = word(second, i / 2);
        return i % 2 ? one >> 16 | (other & 0xFFFF0000u) : (one & 0xFFFFu) | other << 16;
    }
    __device__ static u32 word(const uint4& of, int i) { return i == 0 ? of.x : i == 1 ? of.y : i == 2 ? of.z : of.w; }
    // Store the warp's sums.
    __device__ void give(Sums& sums, int warp) {
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
        if (t() == 0) sums.most[warp][g()] = most, sums.sum[warp][g()] = sum;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int query = 2 * t() + e % 2, first = LOTS == 1 ? 8 * g() + e / 2 * 64 : 8 * g() + e / 2 * 4;
            if (query >= GROUP) continue;
#pragma unroll
            for (int i = 0; i < FEATURES; ++i) sums.mixed[warp][query][first + i] = mixed[i][e];
        }
    }
};
