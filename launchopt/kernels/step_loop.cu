// A loop of steps in one launch (devices/feedback/step_loop.py). The graph of a loop holds the launches of a step and then
// `end_step`, which feeds back the step's outputs as feedback.cu does, and lets the graph repeat the step or end.
// -DWHILE=1: the graph is the body of a conditional node. -DWHILE=0: the graph launches itself.
#include "common/storage.cuh"
#include "common/ptx.cuh"
#include "shared/feedback.cuh"
#include "shared/step_loop.cuh"
#include "tokens/sampling.cuh"
#include "tokens/next_inputs.cuh"

// Copy the words of the rows of the first step to memory of the GPU, and store the number of steps. One block.
extern "C" __global__ void begin_loop(const u64* staged, u64 steps, StepLoop loop) {
    for (u64 i = threadIdx.x; i < loop.words; i += blockDim.x) loop.arguments[i] = staged[i];
    if (threadIdx.x == 0) *loop.left = steps;
}

// Feed back a row, and set its words for the next token. The first block counts the steps. feed.arguments: loop.arguments.
extern "C" __global__ void __launch_bounds__(THREADS, 1) end_step(const __grid_constant__ Feedback feed, StepLoop loop) {
    __shared__ sampling::Scratch scratch;
    __shared__ u64 words[ROW_WORDS];
    const u64 began_ns = global_ns();
    u64* arguments = loop.arguments + blockIdx.x;
    if (threadIdx.x < ROW_WORDS) words[threadIdx.x] = arguments[threadIdx.x * feed.pitch];
    __syncthreads();
    const int id = sampling::token_of(feed, words, scratch);
    sampling::go_on(feed, words, id, scratch);
    __syncthreads();
    if (threadIdx.x) return;
    __threadfence_system();  // a host that sees the id also sees the next inputs
    sampling::store_token(words, id);
    if (words[ROW_HISTORY]) arguments[ROW_HISTORY * feed.pitch] = words[ROW_HISTORY] + feed.row_bytes;
    arguments[ROW_ID * feed.pitch] = words[ROW_ID] + sizeof(u64);
    arguments[ROW_DRAW * feed.pitch] = words[ROW_DRAW] + 1;
    if (blockIdx.x) return;
    if (sampling::KIND != sampling::NONE) *feed.ns += global_ns() - began_ns;
    const u64 left = *loop.left - 1;
    *loop.left = left;
#if WHILE
    if (left == 0) set_condition(loop.handle, 0);
#else
    if (left && !launch_again()) stop_with_error();
#endif
}
