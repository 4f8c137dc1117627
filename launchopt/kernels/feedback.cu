// Feed back the outputs of a step: make the inputs of each request's next token, and the token id if tokens are sampled. One
// block works on one row (tokens/next_inputs.cuh; devices/feedback/kernel.py).
#include "common/storage.cuh"
#include "shared/feedback.cuh"
#include "tokens/sampling.cuh"
#include "tokens/next_inputs.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) feedback(const __grid_constant__ Feedback feed) {
    __shared__ sampling::Scratch scratch;
    __shared__ u64 words[ROW_WORDS];
    if (threadIdx.x < ROW_WORDS) words[threadIdx.x] = feed.arguments[threadIdx.x * feed.pitch + blockIdx.x];
    __syncthreads();
    const int id = sampling::token_of(feed, words, scratch);
    sampling::go_on(feed, words, id, scratch);
    __syncthreads();
    if (threadIdx.x) return;
    __threadfence_system();  // a host that sees the id also sees the next inputs
    sampling::store_token(words, id);
}
