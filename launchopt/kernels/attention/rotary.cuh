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
