// Vectors of 16 bytes, pairs of stored elements, and sums over a warp, for the GEMMs of a list.

// Return the sum of the squares of a vector's elements.
__device__ inline float squares(const uint4& of) {
    Vector v;
    v.whole = of;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sum += v.wide(i) * v.wide(i);
    return sum;
}
// Return the products of two vectors, element by element.
__device__ inline uint4 product(const uint4& of, const uint4& by) {
#if DTYPE == 0
    Vector v, g;
    v.whole = of, g.whole = by;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) v.parts[i] *= g.parts[i];
    return v.whole;
#else
    return {multiply_two(of.x, by.x), multiply_two(of.y, by.y), multiply_two(of.z, by.z), multiply_two(of.w, by.w)};
#endif
}
// Return to all lanes the sum of their values.
__device__ inline float warp_sum(float value) {
#pragma unroll
    for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
    return value;
}
// Add up each of N values over the lanes of a warp. Return to lane i the sum of value i / (32 / N). `of` is overwritten.
template <int N> __device__ inline float warp_sums(float (&of)[N], int lane) {
#pragma unroll
    for (int step = 16, half = N / 2; half; step >>= 1, half >>= 1) {
        const bool upper = lane & step;
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const float own = upper ? of[i + half] : of[i], other = upper ? of[i] : of[i + half];
            of[i] = own + __shfl_xor_sync(0xFFFFFFFFu, other, step);
        }
    }
#pragma unroll
    for (int step = 16 / N; step; step >>= 1) of[0] += __shfl_xor_sync(0xFFFFFFFFu, of[0], step);
    return of[0];
}

// Two neighbouring elements, in the storage type.
struct Pair {
#if DTYPE == 0
    float2 both;
    __device__ Pair() {}
    __device__ Pair(float first, float second) : both{first, second} {}
    __device__ float first() const { return both.x; }
    __device__ float second() const { return both.y; }
    __device__ storage first_stored() const { return both.x; }
    __device__ storage second_stored() const { return both.y; }
#else
    u32 both;
    __device__ Pair() {}
    __device__ Pair(float first, float second) : both(narrow_two(first, second)) {}
    __device__ storage first_stored() const { return (storage)both; }
    __device__ storage second_stored() const { return (storage)(both >> 16); }
    __device__ float first() const { return widen(first_stored()); }
    __device__ float second() const { return widen(second_stored()); }
#endif
};
