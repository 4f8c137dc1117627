// The products of fused attention for halves, by tensor cores (attention/fused_attention.cuh). The lanes of a warp need not
// add up their products.
struct Products : Attention {
    using Attention::Attention;
    // Threads of a warp are numbered 4 g + t, as in `mma`. Rows of a product are queries. A row without a query repeats the
    // last query.
    //
    // KEYS_A_WARP, KEYS_A_BLOCK: keys that a warp, or a block, multiplies at once. KEY_VECTORS: vectors of a key that a thread
    // loads at once. LOTS: groups of WHOLE_TOKENS values that a warp loads at once. FEATURES_A_WARP: features of a value that a
    // warp multiplies at once.
    enum { KEYS_A_WARP = 8, KEYS_A_BLOCK = KEYS_A_WARP * GROUP_WARPS, KEY_VECTORS = HEAD_DIM >= 128 ? 4 : 2 };
    enum { LOTS = 2, FEATURES_A_WARP = 16 };
    // Vectors of one key, and pairs of features of four values per lot. The first ones are loaded before the inputs arrive.
    uint4 keys[KEY_VECTORS];
    u32 values[LOTS][4];
    storage* own_scores;  // address to which this thread stores scores, those of query g

    __device__ int g() const { return threadIdx.x % 32 / 4; }
    __device__ int t() const { return threadIdx.x % 4; }
    __device__ int warp() const { return threadIdx.x / 32; }

    // Load every fourth vector of the key of token `token` + g, from vector `first` + t on. If the cache does not have token
    // `token`, load the key of token g instead.
    __device__ void look_at_keys(int token, int first) {
        const uint4* const key = (const uint4*)cached((token < earlier ? token : 0) + g(), 0);
#pragma unroll
        for (int i = 0; i < KEY_VECTORS; ++i) keys[i] = key[min(first + 4 * i + t(), vectors - 1)];
    }
    // Load two features, from `slice` + 2 g on, of four values of each lot, those of tokens 4 t to 4 t + 3 of the lot. If the
    // cache does not have the lot's first token, load from tokens 4 t to 4 t + 3 instead.
    __device__ void look_at_values(int token, int slice) {
#pragma unroll
        for (int lot = 0; lot < LOTS; ++lot) {
            const int from = token + lot * WHOLE_TOKENS < earlier ? token + lot * WHOLE_TOKENS : 0;
            const char* at = cached(from + 4 * t(), 1);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (i) at = PAGE_TOKENS && PAGE_TOKENS % 4 == 0 ? at + row_bytes : cached(from + 4 * t() + i, 1);
                values[lot][i] = *(const u32*)(at + (slice + 2 * g()) * sizeof(storage));
            }
        }
    }
    // Load the first keys and values from the cache.
    __device__ void look() {
        own_scores = scores_of(g());
        look_at_keys(warp() * KEYS_A_WARP, 0);
        look_at_values(0, min(warp() * FEATURES_A_WARP, head_dim - FEATURES_A_WARP));
    }
    // Compute the scores. A warp multiplies KEYS_A_WARP keys at once by all queries.
    __device__ void score() {
        const float scale = 1.0f / sqrtf((float)head_dim), none = -__uint_as_float(0x7F800000u);
        const uint4 *query = (const uint4*)(rows + min(g(), group - 1) * head_dim), *key = (const uint4*)fresh(0);
#pragma unroll 1
        for (int first = warp() * KEYS_A_WARP; first < whole; first += KEYS_A_BLOCK) {
            float sums[2][4] = {};
            for (int vector = 0; vector < vectors; vector += 4 * KEY_VECTORS) {
                if (first >= KEYS_A_BLOCK || vector) look_at_keys(first, vector);
#pragma unroll
                for (int i = 0; i < KEY_VECTORS; ++i) {
                    const int own = vector + 4 * i + t();
                    if (own - t() >= vectors) break;
                    uint4 x = {}, y = keys[i];
                    if (own < vectors) x = query[own];
                    if (first + g() >= earlier) y = key[min(own, vectors - 1)];
                    mma(sums[0], x.x, 0, x.y, 0, y.x, y.y);
                    mma(sums[1], x.z, 0, x.w, 0, y.z, y.w);
                }
            }
            const int token = first + 2 * t();
            const Pair made(token < stop ? (sums[0][0] + sums[1][0]) * scale : none,
                            token + 1 < stop ? (sums[0][1] + sums[1][1]) * scale : none);
            if (g() < group) {
                *(Pair*)(scores + g() * whole + token) = made;
                storage* const to = own_scores + token;
                if (token < stop) to[0] = made.first_stored();
                if (token + 1 < stop) to[1] = made.second_stored();
            }
        }
    }
    // Weight the values by the probabilities. A warp has FEATURES_A_WARP features of all tokens. A word of a value holds two
    // neighbouring features; the first is a column of the product `even`, the second a column of the product `odd`.
    __device__ void mix() {
        const storage* const weights = scores + min(g(), group - 1) * whole + 4 * t();
#pragma unroll 1
        for (int slice = warp() * FEATURES_A_WARP; slice < head_dim; slice += FEATURES_A_WARP * GROUP_WARPS) {
            const u32 last = *(const u32*)(fresh(1) + slice + 2 * g());
            float even[4] = {}, odd[4] = {};
#pragma unroll 1
            for (int first = 0; first < stop; first += LOTS * WHOLE_TOKENS) {
                if (first || slice >= FEATURES_A_WARP * GROUP_WARPS) look_at_values(first, slice);
#pragma unroll
                for (int lot = 0; lot < LOTS; ++lot) {
                    const int from = first + lot * WHOLE_TOKENS;
                    if (from >= stop) break;
                    const uint2 weight = *(const uint2*)(weights + from);
                    u32 v[4];
#pragma unroll
                    for (int i = 0; i < 4; ++i) v[i] = from + 4 * t() + i < earlier ? values[lot][i] : last;
                    mma(even, weight.x, 0, weight.y, 0, v[0] & 0xFFFFu | v[1] << 16, v[2] & 0xFFFFu | v[3] << 16);
                    mma(odd, weight.x, 0, weight.y, 0, v[0] >> 16 | v[1] & 0xFFFF0000u, v[2] >> 16 | v[3] & 0xFFFF0000u);
                }
            }
            if (g() < group) {
                const int to = g() * head_dim + slice + 4 * t();
                give(to, Pair(even[0], odd[0])), give(to + 2, Pair(even[1], odd[1]));
            }
        }
    }
};
