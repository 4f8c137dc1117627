// All operations of launchopt.command.Op but GEMM, for all sizes. C is [n, m], B is [n, k]. devices/cuda/op_kernels.py computes
// the grid of each operation. Coordinate z of the grid is the command of the batch; the commands are those of requests
// `request`, `request` + 1 and so on. Operations skip requests that do not exist, since a batch may be padded with such
// requests.
#define OP(name) extern "C" __global__ void name(char* a, char* b, char* c, i64 request, const Args p)
#define OP_OF(name, threads, blocks) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(char* a, char* b, char* c, i64 request, const Args p)
#include "common/storage.cuh"
#include "attention/kv_cache.cuh"
#include "attention/attention.cuh"
#include "common/ops.cuh"
