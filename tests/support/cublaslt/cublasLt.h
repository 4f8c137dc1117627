// The part of cuBLASLt that scripts/cpp_loop uses, on the host, with the signatures of its reference. A matmul multiplies at
// once. With FAULT=1 in the environment it leaves out the last command of a batch.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

typedef int cublasStatus_t;
typedef struct Handle* cublasLtHandle_t;
struct MatrixLayout {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t leading, stride;
    int batch;
};
struct MatmulDesc {
    int a_is_transposed;
};
typedef MatmulDesc* cublasLtMatmulDesc_t;
typedef MatrixLayout* cublasLtMatrixLayout_t;
typedef struct Preference* cublasLtMatmulPreference_t;
struct cublasLtMatmulAlgo_t {
    uint64_t data[8];
};
struct cublasLtMatmulHeuristicResult_t {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
};
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68 };
enum cublasLtMatmulDescAttributes_t { CUBLASLT_MATMUL_DESC_TRANSA = 3 };
enum cublasLtMatrixLayoutAttribute_t {
    CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,
    CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6
};
enum cublasLtMatmulPreferenceAttributes_t { CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1 };

inline size_t cublasLtGetVersion() { return 130100; }
inline cublasStatus_t cublasLtCreate(cublasLtHandle_t* made) { return *made = nullptr, 0; }
inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return 0; }
inline cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t, cudaDataType_t) {
    return *made = new MatmulDesc{0}, 0;
}
inline cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t which) { return delete which, 0; }
inline cublasStatus_t cublasLtMatmulDescSetAttribute(
    cublasLtMatmulDesc_t which, cublasLtMatmulDescAttributes_t, const void* value, size_t bytes) {
    return std::memcpy(&which->a_is_transposed, value, bytes), 0;
}
inline cublasStatus_t cublasLtMatrixLayoutCreate(
    cublasLtMatrixLayout_t* made, cudaDataType_t type, uint64_t rows, uint64_t columns, int64_t leading) {
    return *made = new MatrixLayout{type, rows, columns, leading, 0, 1}, 0;
}
inline cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t which) { return delete which, 0; }
inline cublasStatus_t cublasLtMatrixLayoutSetAttribute(
    cublasLtMatrixLayout_t which, cublasLtMatrixLayoutAttribute_t name, const void* value, size_t bytes) {
    void* const to = name == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? (void*)&which->batch : (void*)&which->stride;
    return std::memcpy(to, value, bytes), 0;
}
inline cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) { return *made = nullptr, 0; }
inline cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) { return 0; }
inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void*, size_t) {
    return 0;
}
inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t*, int* found) {
    return *found = 1, 0;
}
template <class T>
void multiply(const MatrixLayout& of_a, const T* a, const MatrixLayout& of_b, const T* b, const MatrixLayout& of_c, T* c) {
    const int batch = of_c.batch - (std::getenv("FAULT") ? 1 : 0);
    for (int i = 0; i < batch; ++i, a += of_a.stride, b += of_b.stride, c += of_c.stride)
        for (uint64_t column = 0; column < of_c.columns; ++column)
            for (uint64_t row = 0; row < of_c.rows; ++row) {
                float sum = 0.0f;
                for (uint64_t j = 0; j < of_a.rows; ++j)
                    sum += (float)a[row * of_a.leading + j] * (float)b[column * of_b.leading + j];
                c[column * of_c.leading + row] = (T)sum;
            }
}
inline cublasStatus_t cublasLtMatmul(
    cublasLtHandle_t, cublasLtMatmulDesc_t description, const void* alpha, const void* a, cublasLtMatrixLayout_t of_a,
    const void* b, cublasLtMatrixLayout_t of_b, const void* beta, const void*, cublasLtMatrixLayout_t, void* c,
    cublasLtMatrixLayout_t of_c, const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t) {
    if (!description->a_is_transposed || *(const float*)alpha != 1.0f || *(const float*)beta != 0.0f) return 7;
    if (of_c->type == CUDA_R_32F) return multiply(*of_a, (const float*)a, *of_b, (const float*)b, *of_c, (float*)c), 0;
    return multiply(*of_a, (const __half*)a, *of_b, (const __half*)b, *of_c, (__half*)c), 0;
}
