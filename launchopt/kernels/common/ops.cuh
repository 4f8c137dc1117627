// The operations that do not depend on the request's position; attention/kv_cache.cuh and attention/attention.cuh have the
// others. The macro OP makes each operation a kernel (ops.cu), or a function that a kernel calls for each virtual block
// (megakernel.cu).
enum Second { NOTHING, VECTOR, ROWS };  // forms of operand A: none, one vector for all rows, or rows

// Store f(b, a) for each element b of B and the matching element a of A. Grid: x over features, y over columns.
template <Second A, class F>
__device__ void each(const storage* a, i64 lda, const storage* b, storage* c, const Args& p, F f) {
    const bool whole = (A == NOTHING || aligned(a, A == ROWS ? lda : 0)) && aligned(b, p.ldb) && aligned(c, p.ldc);
    const Share share(blockIdx.x, p.m, whole);
    if (share.empty()) return;
    float x[WIDTH], y[WIDTH] = {};
    if (A == VECTOR) load(y, a, share);
    for (i64 j = blockIdx.y; j < p.n; j += gridDim.y) {
        load(x, b + j * p.ldb, share);
        if (A == ROWS) load(y, a + j * lda, share);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) x[i] = f(x[i], y[i]);
        store(c + j * p.ldc, share, x);
    }
}

OP(BIAS) {
    each<VECTOR>(A_OF, 0, B_OF, C_OF, p, [](float x, float y) { return x + y; });
}
OP(RELU) {
    each<NOTHING>(0, 0, B_OF, C_OF, p, [](float x, float) { return relu(x); });
}
OP(SCALE) {
    each<VECTOR>(A_OF, 0, B_OF, C_OF, p, [](float x, float y) { return x * y; });
}
OP(ADD) {
    each<ROWS>(A_OF, p.lda, B_OF, C_OF, p, [](float x, float y) { return x + y; });
}
OP(SILU_MUL) {
    const storage* gate = B_OF;
    each<ROWS>(gate + p.m, p.ldb, gate, C_OF, p, [](float x, float up) { return x / (1.0f + expf(-x)) * up; });
}

// RMS norm. Grid: one block per column. A thread keeps in registers the first elements that it reads: all its elements, if a
// row has up to WIDTH * blockDim.x features.
OP(NORM) {
    __shared__ float part[33];
    const i64 j = blockIdx.x;
    const storage *gain = A_OF, *from = B_OF + j * p.ldb;
    storage* to = C_OF + j * p.ldc;
    const bool whole = aligned(gain) && aligned(from) && aligned(to);
    const i64 passes = (p.m + WIDTH * blockDim.x - 1) / (WIDTH * blockDim.x);
    float first[WIDTH], scale[WIDTH], x[WIDTH], sum = 0.0f;
    load(first, from, Share(0, p.m, whole));
    load(scale, gain, Share(0, p.m, whole));
    for (int i = 0; i < WIDTH; ++i) sum += first[i] * first[i];
    for (i64 pass = 1; pass < passes; ++pass) {
        load(x, from, Share(pass, p.m, whole));
        for (int i = 0; i < WIDTH; ++i) sum += x[i] * x[i];
    }
    sum = combined(sum, part, [](float x, float y) { return x + y; });
    const float factor = 1.0f / sqrtf(sum / (float)p.m + NORM_EPSILON);
    for (i64 pass = 0; pass < passes; ++pass) {
        const Share share(pass, p.m, whole);
        if (pass) load(first, from, share), load(scale, gain, share);
        for (int i = 0; i < WIDTH; ++i) x[i] = first[i] * factor * scale[i];
        store(to, share, x);
    }
}
