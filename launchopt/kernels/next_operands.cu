// Copy the operands of the next step from a table of all steps, and count the step. It is the first launch of a captured step,
// whose other launches read the addresses of their operands from `words`. So the host uploads nothing between steps.
//
// tables: i64 [steps][count]. number: that of the next step. -DPDL=1: programmatic dependent launch, as in ops.cu.
#include "common/storage.cuh"
#include "common/ptx.cuh"
#ifndef PDL
#define PDL 0
#endif

extern "C" __global__ void next_operands(const i64* tables, i64* number, i64* words, i64 count) {
#if PDL
    let_next_begin();
    wait_for_earlier();
#endif
    const i64 step = *number;
    for (i64 i = threadIdx.x; i < count; i += blockDim.x) words[i] = tables[step * count + i];
    __syncthreads();
    if (threadIdx.x == 0) *number = step + 1;
}
