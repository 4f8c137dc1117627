// All operations of launchopt.command.Op but GEMM, for all sizes. C is [n, m], B is [n, k]. devices/cuda/op_kernels.py computes
// the grid of each operation. Coordinate z of the grid is the command of the batch; the commands are those of requests
// `request`, `request` + 1 and so on. Operations skip requests that do not exist, since a batch may be padded with such
// requests.
//
// -DPDL=1: programmatic dependent launch. A kernel may start while the previous kernel of the CUDA stream runs. It lets the
// next kernel start, and waits for the end of the previous kernel before it reads or writes anything.
//
// -DINDIRECT=1: A is the address of the addresses of A, B and C. A captured launch then gets other operands by an upload.
#include "common/storage.cuh"
#include "common/ptx.cuh"
#ifndef PDL
#define PDL 0
#endif
#ifndef INDIRECT
#define INDIRECT 0
#endif
#define PARAMETERS char *a, char *b, char *c, i64 request
// What a kernel does before its operation.
__device__ __forceinline__ void begin(char*& a, char*& b, char*& c) {
#if PDL
    let_next_begin();
    wait_for_earlier();
#endif
#if INDIRECT
    char* const* at = (char* const*)a;
    a = at[0], b = at[1], c = at[2];
#endif
}
#if PDL || INDIRECT
#define KERNEL(name, bounds)                                               \
    __device__ __forceinline__ void name##_now(PARAMETERS, const Args& p); \
    extern "C" __global__ void bounds name(PARAMETERS, const Args p) {     \
        begin(a, b, c);                                                    \
        name##_now(a, b, c, request, p);                                   \
    }                                                                      \
    __device__ __forceinline__ void name##_now(PARAMETERS, const Args& p)
#else
#define KERNEL(name, bounds) extern "C" __global__ void bounds name(PARAMETERS, const Args p)
#endif
#define OP(name) KERNEL(name, )
#define OP_OF(name, threads, blocks) KERNEL(name, __launch_bounds__(threads, blocks))
#include "attention/kv_cache.cuh"
#include "attention/attention.cuh"
#include "common/ops.cuh"
#include "experts/routing.cuh"
