// The part of CUDA's runtime that scripts/cpp_loop uses, on the host: memory of the host, and a clock for events.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>

typedef int cudaError_t;
typedef struct Stream* cudaStream_t;
typedef std::chrono::steady_clock::time_point* cudaEvent_t;
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_16F = 2 };
struct cudaDeviceProp {
    char name[256];
};

inline cudaError_t cudaMalloc(void** made, size_t bytes) { return (*made = std::malloc(bytes)) ? 0 : 2; }
inline cudaError_t cudaFree(void* memory) { return std::free(memory), 0; }
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    return std::memcpy(to, from, bytes), 0;
}
inline cudaError_t cudaMemset(void* to, int byte, size_t bytes) { return std::memset(to, byte, bytes), 0; }
inline cudaError_t cudaDeviceSynchronize() { return 0; }
inline cudaError_t cudaStreamCreate(cudaStream_t* made) { return *made = nullptr, 0; }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return 0; }
inline cudaError_t cudaEventCreate(cudaEvent_t* made) {
    return *made = new std::chrono::steady_clock::time_point, 0;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, 0; }
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
    return *event = std::chrono::steady_clock::now(), 0;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return 0; }
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
    return *ms = std::chrono::duration<float, std::milli>(*end - *begin).count(), 0;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int) {
    return std::strcpy(found->name, "host"), 0;
}
inline cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, 0; }
