// GEMMs that C++ submits to cuBLASLt: one launch a command in a bare loop, and strided batches of the same commands.
//
//     nvcc -O3 -std=c++17 cpp_loop.cpp -lcublasLt -o cpp_loop && ./cpp_loop
//
// Every command has its own matrix, input and output (COMMANDS of them, in turn), random and never zero. Outputs are poisoned
// with NaN first, and some are compared with double afterwards. A sample is the time between two events on the work's stream,
// by commands. The loop and each batch size take turns, REPEATS times, after a warm-up. Output: JSON on standard output, times
// in microseconds a command. Exit code 1: an error of CUDA or cuBLASLt, or a wrong output.
#include <cublasLt.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#ifndef SCALE  // tests without a GPU divide the sizes
#define SCALE 1
#endif
constexpr int COMMANDS = 512, REPEATS = 5, LAPS = 8, CHECKED = 64;
constexpr size_t WORKSPACE_BYTES = 32 << 20;

#define CHECK(call)                                                                        \
    do {                                                                                   \
        const int code = (int)(call);                                                      \
        if (code != 0) {                                                                   \
            std::fprintf(stderr, "line %d: %s gave error %d\n", __LINE__, #call, code);    \
            std::exit(1);                                                                  \
        }                                                                                  \
    } while (0)

struct Work {
    const char* workload;
    int m, n, k;
    std::vector<int> batches;
};
const Work WORKS[] = {
    {"gemv_micro", 64 / SCALE, 1, 8192 / SCALE, {512}},
    {"gemv_256", 256 / SCALE, 1, 256 / SCALE, {512}},
    {"decode", 1024 / SCALE, 1, 1024 / SCALE, {16, 256}},
    {"prefill", 1024 / SCALE, 256 / SCALE, 1024 / SCALE, {8}},
};

inline void put(float& to, float value) { to = value; }
inline void put(__half& to, float value) { to = __float2half(value); }
inline double get(float value) { return value; }
inline double get(__half value) { return __half2float(value); }

// Uniform in [-1, 1), from a 64-bit generator (splitmix64).
struct Random {
    uint64_t state;
    uint64_t bits() {
        uint64_t z = state += 0x9e3779b97f4a7c15;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }
    float uniform() { return (float)(bits() >> 40) * 0x1p-23f - 1.0f; }
};

// COMMANDS matrices of one operand, on the host and on the device.
template <class T> struct Operand {
    size_t each;
    std::vector<T> host;
    T* device = nullptr;

    explicit Operand(size_t each) : each(each), host(each * COMMANDS) { CHECK(cudaMalloc((void**)&device, bytes())); }
    ~Operand() { cudaFree(device); }
    size_t bytes() const { return host.size() * sizeof(T); }
    void fill(uint64_t seed) {
        Random random{seed};
        for (T& value : host) put(value, random.uniform());
        CHECK(cudaMemcpy(device, host.data(), bytes(), cudaMemcpyHostToDevice));
    }
    void poison() { CHECK(cudaMemset(device, 0xff, bytes())); }  // all bits set: a NaN in fp32 and in fp16
    void fetch() { CHECK(cudaMemcpy(host.data(), device, bytes(), cudaMemcpyDeviceToHost)); }
};

// What one cublasLtMatmul of `batch` commands needs. C = A^T B, as launchopt multiplies: A is k x m, B k x n, by columns.
struct Plan {
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulHeuristicResult_t chosen;

    Plan(cublasLtHandle_t handle, const Work& work, cudaDataType_t type, int batch) {
        CHECK(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        const cublasOperation_t transposed = CUBLAS_OP_T;
        CHECK(cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
        a = layout(type, work.k, work.m, batch);
        b = layout(type, work.k, work.n, batch);
        c = layout(type, work.m, work.n, batch);
        cublasLtMatmulPreference_t preference;
        CHECK(cublasLtMatmulPreferenceCreate(&preference));
        CHECK(cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE_BYTES, sizeof WORKSPACE_BYTES));
        int found = 0;
        CHECK(cublasLtMatmulAlgoGetHeuristic(handle, description, a, b, c, c, preference, 1, &chosen, &found));
        CHECK(found == 1 ? 0 : -1);
        CHECK(cublasLtMatmulPreferenceDestroy(preference));
    }
    ~Plan() {
        for (cublasLtMatrixLayout_t each : {a, b, c}) cublasLtMatrixLayoutDestroy(each);
        cublasLtMatmulDescDestroy(description);
    }
    Plan(const Plan&) = delete;

    static cublasLtMatrixLayout_t layout(cudaDataType_t type, int rows, int columns, int batch) {
        cublasLtMatrixLayout_t made;
        CHECK(cublasLtMatrixLayoutCreate(&made, type, rows, columns, rows));
        const int64_t stride = (int64_t)rows * columns;
        CHECK(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
        CHECK(cublasLtMatrixLayoutSetAttribute(
            made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride));
        return made;
    }
};

template <class T> class Bench {
  public:
    Bench(cublasLtHandle_t handle, const Work& work, cudaDataType_t type)
        : handle_(handle), work_(work), type_(type), a_((size_t)work.k * work.m), b_((size_t)work.k * work.n),
          c_((size_t)work.m * work.n) {
        CHECK(cudaMalloc(&workspace_, WORKSPACE_BYTES));
        CHECK(cudaStreamCreate(&stream_));
        CHECK(cudaEventCreate(&begin_));
        CHECK(cudaEventCreate(&end_));
        a_.fill(1);
        b_.fill(2);
    }
    ~Bench() {
        cudaEventDestroy(begin_);
        cudaEventDestroy(end_);
        cudaStreamDestroy(stream_);
        cudaFree(workspace_);
    }

    void print(const char* dtype, bool is_last) {
        std::vector<int> sizes{1};
        sizes.insert(sizes.end(), work_.batches.begin(), work_.batches.end());
        std::vector<std::vector<double>> samples(sizes.size());
        for (int repeat = -1; repeat < REPEATS; ++repeat)  // the first round is the warm-up
            for (size_t i = 0; i < sizes.size(); ++i) {
                const double us = sample(sizes[i], repeat < 0);
                if (repeat >= 0) samples[i].push_back(us);
            }
        std::printf("  {\"workload\": \"%s\", \"m\": %d, \"n\": %d, \"k\": %d, \"dtype\": \"%s\", \"loop_us\": ", work_.workload,
                    work_.m, work_.n, work_.k, dtype);
        list(samples[0]);
        std::printf(", \"batch_us\": {");
        for (size_t i = 1; i < sizes.size(); ++i) {
            std::printf("%s\"%d\": ", i > 1 ? ", " : "", sizes[i]);
            list(samples[i]);
        }
        std::printf("}}%s\n", is_last ? "" : ",");
    }

  private:
    // Microseconds a command in batches of `size`.
    double sample(int size, bool is_checked) {
        const Plan plan(handle_, work_, type_, size);
        const float one = 1.0f, zero = 0.0f;
        c_.poison();
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaEventRecord(begin_, stream_));
        for (int lap = 0; lap < LAPS; ++lap)
            for (int first = 0; first < COMMANDS; first += size) {
                T* const c = c_.device + c_.each * first;
                CHECK(cublasLtMatmul(handle_, plan.description, &one, a_.device + a_.each * first, plan.a,
                                     b_.device + b_.each * first, plan.b, &zero, c, plan.c, c, plan.c, &plan.chosen.algo,
                                     workspace_, WORKSPACE_BYTES, stream_));
            }
        CHECK(cudaEventRecord(end_, stream_));
        CHECK(cudaEventSynchronize(end_));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin_, end_));
        if (is_checked) check(size);
        return 1e3 * ms / (LAPS * COMMANDS);
    }

    // Compare CHECKED outputs, chosen at random, with double. The bound is that of rounding a sum of k products.
    void check(int size) {
        c_.fetch();
        Random random{(uint64_t)size};
        const double bound = (sizeof(T) == 2 ? 4e-3 : 1e-5) * std::sqrt((double)work_.k);
        for (int i = 0; i < CHECKED; ++i) {
            const size_t command = random.bits() % COMMANDS, row = random.bits() % work_.m, column = random.bits() % work_.n;
            double sum = 0.0;
            for (size_t j = 0; j < (size_t)work_.k; ++j)
                sum += get(a_.host[command * a_.each + row * work_.k + j]) * get(b_.host[command * b_.each + column * work_.k + j]);
            const double found = get(c_.host[command * c_.each + column * work_.m + row]);
            if (!(std::fabs(found - sum) <= bound)) {
                std::fprintf(stderr, "wrong output: %s, batch %d: %g instead of %g\n", work_.workload, size, found, sum);
                std::exit(1);
            }
        }
    }

    static void list(const std::vector<double>& values) {
        for (size_t i = 0; i < values.size(); ++i) std::printf("%s%.5g", i ? ", " : "[", values[i]);
        std::printf("]");
    }

    cublasLtHandle_t handle_;
    Work work_;
    cudaDataType_t type_;
    Operand<T> a_, b_, c_;
    void* workspace_ = nullptr;
    cudaStream_t stream_;
    cudaEvent_t begin_, end_;
};

int main() {
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    int driver = 0;
    CHECK(cudaDriverGetVersion(&driver));
    cublasLtHandle_t handle;
    CHECK(cublasLtCreate(&handle));
    std::printf("{\"gpu\": \"%s\", \"cuda_driver\": %d, \"cublaslt\": %zu, \"shapes\": [\n", device.name, driver,
                cublasLtGetVersion());
    const int count = sizeof WORKS / sizeof *WORKS;
    for (int i = 0; i < count; ++i) {
        Bench<float>(handle, WORKS[i], CUDA_R_32F).print("fp32", false);
        Bench<__half>(handle, WORKS[i], CUDA_R_16F).print("fp16", i == count - 1);
    }
    std::printf("]}\n");
    CHECK(cublasLtDestroy(handle));
    return 0;
}
