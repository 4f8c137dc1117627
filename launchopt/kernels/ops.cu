// Every operation of launchopt.command.Op but GEMM, for any sizes. C is [n, m], B is [n, k]. devices/cuda/op_kernels.py gives
// the grid of each. z counts the commands of a batch, which are those of requests `request`, `request` + 1 and so on. A request
// that does not exist is skipped, since a batch may be padded with such.
#define OP(name) extern "C" __global__ void name(char* a, char* b, char* c, i64 request, const Args p)
#define OP_OF(name, threads, blocks) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(char* a, char* b, char* c, i64 request, const Args p)
#include "common/storage.cuh"
#include "attention/kv_cache.cuh"
#include "attention/attention.cuh"
#include "common/ops.cuh"
