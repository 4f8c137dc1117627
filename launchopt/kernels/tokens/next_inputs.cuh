// Feeding back: from the last outputs of a row to its token (tokens/sampling.cuh) and to its next inputs. The next inputs are
// the scaled outputs, or the embedding of the token (launchopt/devices/feedback/host.py). All threads of a block work on one
// row.
namespace sampling {
// Return the sum of COUNT values; APART is the distance, in elements, from one value to the next. Each step adds the upper half
// of the values to the lower half.
template <int COUNT, int APART, int STEP = 1> __device__ double halved(const double* of) {
    if constexpr (STEP == COUNT) return *of;
    else return __dadd_rn(halved<COUNT, APART, 2 * STEP>(of), halved<COUNT, APART, 2 * STEP>(of + STEP * APART));
}

// Scale `hidden` outputs to a root mean square of 1/sqrt(3), with random signs that depend on `counter`. HostFeedback adds up
// the squares in the same order and draws the same signs, so both results have the same bits. history: address of a copy of the
// outputs, or 0. sums: shared memory for THREADS sums.
__device__ void scaled(const storage* source, storage* target, storage* history, u64 counter, u32 hidden, double* sums) {
    static_assert(PARTIAL_SUMS % THREADS == 0, "each thread first adds up values of its own");
    enum { OWN = PARTIAL_SUMS / THREADS };
    double own[OWN] = {};
    for (u32 first = threadIdx.x; first < hidden; first += PARTIAL_SUMS) {
        storage value[OWN];
#pragma unroll
        for (u32 j = 0; j < OWN; ++j)  // all loads are issued before the first value is used
            value[j] = first + j * THREADS < hidden ? source[first + j * THREADS] : narrow(0.0f);
#pragma unroll
        for (u32 j = 0; j < OWN; ++j) own[j] = __dadd_rn(own[j], __dmul_rn(widen(value[j]), widen(value[j])));
    }
    sums[threadIdx.x] = halved<OWN, 1>(own);
    __syncthreads();
    double sum = halved<WARPS, 32>(sums + threadIdx.x % 32);  // each warp adds up all sums
#pragma unroll
    for (int half = 16; half; half /= 2) sum = __dadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, half));
    const u64 start = mixed((counter + 1) * GOLDEN);
    const double factor = sum == 0 ? 1 : __dsqrt_rn(__ddiv_rn((double)hidden, __dmul_rn(3.0, sum)));
#pragma unroll 4
    for (u32 i = threadIdx.x; i < hidden; i += THREADS) {
        storage value = source[i];
        if (history) history[i] = value;
        const float scaled = __double2float_rn(__dmul_rn((double)widen(value), factor));
        const bool turned = mixed(start + (i / 64 + 1) * GOLDEN) >> i % 64 & 1;
        target[i] = narrow(turned ? -scaled : scaled);
    }
}

__device__ void copy_row(const storage* source, storage* target, u32 hidden) {
    if ((((u64)source | (u64)target | hidden * sizeof(storage)) & 15) == 0) {
        const u32 width = hidden * sizeof(storage) / 16;
        for (u32 i = threadIdx.x; i < width; i += THREADS) ((int4*)target)[i] = ((const int4*)source)[i];
    } else {
        for (u32 i = threadIdx.x; i < hidden; i += THREADS) target[i] = source[i];
    }
}

// The functions below feed back one row. words: the row's ROW_WORDS words (launchopt/kernels/shared.py).

// Return the row's token, or 0 without sampling.
__device__ int token_of(const Feedback& feed, const u64* words, Scratch& scratch) {
    if (KIND == NONE) return 0;
    return sampled((const storage*)words[0], (u32)feed.vocab, words[4], feed.start, feed.inverse_temperature, (u32)feed.k,
                   feed.p, scratch);
}
// Write the request's next input: the embedding of token `id` (of token 0 if `id` is negative), or, without sampling, the
// rescaled output.
__device__ void go_on(const Feedback& feed, const u64* words, int id, Scratch& scratch) {
    storage* target = (storage*)words[1];
    if (KIND == NONE)
        scaled((const storage*)words[0], target, (storage*)words[2], words[4], (u32)feed.hidden, scratch.sums);
    else copy_row((const storage*)(feed.embedding + (id < 0 ? 0 : id) * feed.row_bytes), target, (u32)feed.hidden);
}
// Store the token for the host. One thread calls this.
__device__ void store_token(const u64* words, int id) {
    if (words[3]) *(volatile int*)words[3] = id;
}
}  // namespace sampling
