// C = B @ A.T for the requests of a decode step: one column per request, halves only, accumulated in fp32. Each weight is read
// once. A norm of the inputs, an ADD to the outputs and SiLU(gate) * up may be fused. A may be quantised.
//
// The grid has at most one block per multiprocessor. A block multiplies some halves of tiles: 8 rows each. Two warps copy their
// weights to a ring of slots in shared memory; they have no inputs to wait for. The other warps share k: each multiplies its
// slice, SLICE bytes, of each piece of PIECE_BYTES of all rows. It copies the inputs of its slices to shared memory some pieces
// ahead. At the end of a pass the block adds up the sums of its warps.
//
// mma.m16n8k16 multiplies two halves: rows g and g + 8 of thread 4 g + t. Any order of k gives the same sums, as long as inputs
// and weights agree: a thread has 8 neighbours of 32, k = 8 t to 8 t + 7, and uses them in two products. A vector of codes is
// the weights of PACK such chunks: a thread has 8 * PACK neighbours of 32 * PACK, and takes its inputs in the same order.
//
// Macros:
//   COLUMNS      most requests: 1, 8 or 16
//   WARPS        warps that multiply
//   PIECE_BYTES  bytes of each row that a slot holds; WARPS * 64, or a multiple
//   TILES        most tiles of a pass
//   SLOTS        slots of the ring
//   WHOLE        1: k is a multiple of a piece
//   NORMED       1: B is the input of an RMS norm with the weights `gain`
//   ADDS         1: C = B @ A.T + R
//   GATED        1: A has `pair_rows` rows of gates and then as many of ups; C = SiLU(gate) * up
//   HELD         pieces of inputs that are in shared memory, or on their way
//   BLOCKS       blocks that fit on a multiprocessor
//   WEIGHTS, SCALES  of a quantised A (common/quantised.cuh); its rows are not gapped, and its scales are behind it
//   PDL          1: programmatic dependent launch. Copies of weights begin before the previous launch has ended. The next
//                launch may begin once all copies have been issued: earlier, its copies would delay those of this launch
#include "common/storage.cuh"
#include "common/ptx.cuh"
#ifndef WEIGHTS
#define WEIGHTS FORMAT_NONE
#define SCALES PER_CHANNEL
#endif
#include "common/quantised.cuh"
#include "steps/unpacked.cuh"
#include "steps/layout.cuh"
#include "steps/weights.cuh"
#include "steps/results.cuh"
#include "steps/consumer.cuh"

extern "C" __global__ void __launch_bounds__(ALL_THREADS, BLOCKS)
    step_gemm(char* a, char* b, char* c, char* r, const __grid_constant__ StepGemm p) {
    extern __shared__ __align__(128) char shared[];
    const u32 ring = shared_address(shared), full = shared_address(barriers);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x < 2 * SLOTS + 1) barrier_begin(full + 8 * threadIdx.x, threadIdx.x / SLOTS == 1 ? WARPS : 1);
    barriers_begun();
    __syncthreads();
    const Work work(p);
    const Copier copier{p, work, (u64)a, evict_first(), ring, full, (u32)lane};
    copier.begin(warp);
    if (warp >= WARPS) {
        const u32 bytes = (u32)p.k_bytes, barrier = full + 16 * SLOTS;
        if (NORMED && threadIdx.x == 32 * WARPS) {
            barrier_expect(barrier, bytes);
            copy_bulk(ring + GAIN_AT, p.gain, bytes, barrier);
        }
        copier.run(warp - WARPS);
        if (PDL) let_next_begin();
        return;
    }
    Consumer own(p, work, a, b, ring, full);
    const Results results;
    if (PDL) wait_for_earlier();
    own.fetch_first();
    if (NORMED) barrier_wait(full + 16 * SLOTS, 0);
#pragma unroll 1
    for (u32 done = 0; done < work.halves; done += PASS_HALVES) {
        const u32 half = work.first + done, here = min((u32)PASS_HALVES, work.halves - done);
        AtEnd end;
        end.load(results, half, here, r, a, p);
        if (done) Consumer::group_barrier();  // the parts of the pass before have been read
        own.pass(half, here, done == 0);
        if (NORMED && done == 0) own.leave_squares();
        if (done + PASS_HALVES < work.halves) own.fetch_first();
        own.finish(results, end, half, here, done == 0, a, c, r);
    }
}
