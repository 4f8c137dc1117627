// Normalize the features of a head as NORM does, unless `is_normed` is false. Each of `lanes` neighbouring lanes, a power of
// two, has those of two vectors. All lanes of a warp take part.
__device__ inline void normalize_head(
    Vector& x, Vector& y, const uint4& gain, const uint4& other_gain, int lanes, bool is_normed) {
    float sum = squares(x.whole) + squares(y.whole);
    for (int step = lanes / 2; step; step >>= 1) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
    if (!is_normed) return;
    const float factor = 1.0f / sqrtf(sum / (float)(2 * lanes * WIDTH) + NORM_EPSILON);
    Vector u, v;
    u.whole = gain, v.whole = other_gain;
#pragma unroll
    for (int e = 0; e < WIDTH; e += 2) {
        ((Pair*)&x)[e / 2] = Pair(x.wide(e) * factor * u.wide(e), x.wide(e + 1) * factor * u.wide(e + 1));
        ((Pair*)&y)[e / 2] = Pair(y.wide(e) * factor * v.wide(e), y.wide(e + 1) * factor * v.wide(e + 1));
    }
}

// Rotate WIDTH pairs of features, x[e] with y[e], by the angles with these cosines and sines. The results are rounded to the
// storage type.
__device__ inline void rotate_pairs(Vector& x, Vector& y, const float (&cosines)[WIDTH], const float (&sines)[WIDTH]) {
#pragma unroll
    for (int e = 0; e < WIDTH; e += 2) {
        const float x0 = x.wide(e), x1 = x.wide(e + 1);
        const float y0 = y.wide(e), y1 = y.wide(e + 1);
        ((Pair*)&x)[e / 2] = Pair(x0 * cosines[e] - y0 * sines[e], x1 * cosines[e + 1] - y1 * sines[e + 1]);
        ((Pair*)&y)[e / 2] = Pair(x0 * sines[e] + y0 * cosines[e], x1 * sines[e + 1] + y1 * cosines[e + 1]);
    }
}
