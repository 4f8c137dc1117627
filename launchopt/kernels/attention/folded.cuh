// Add up each of 8 values over the 8 lanes that differ only in bits STEP, STEP/2 and STEP/4. Return the sum of one value; these
// bits of the lane number are the index of that value.
template <int STEP> __device__ float folded(float (&values)[QUERIES]) {
#pragma unroll
    for (int half = QUERIES / 2, step = STEP; half; half >>= 1, step >>= 1) {
        const bool upper = threadIdx.x & step;
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const float sent = upper ? values[i] : values[i + half], kept = upper ? values[i + half] : values[i];
            values[i] = kept + __shfl_xor_sync(0xFFFFFFFFu, sent, step);
        }
    }
    return values[0];
}
