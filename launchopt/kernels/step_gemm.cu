// C = B @ A.T for the requests of a decode step: one column per request, halves only, accumulated in fp32. Each weight is read
// once. A norm of the inputs, an ADD to the outputs and SiLU(gate) * up may be fused.
//
// The grid has at most one block per multiprocessor, so blocks of two such launches fit on it (PDL). A block multiplies some
// halves of tiles: 8 rows each. One warp copies their weights to a ring of slots in shared memory; it has no inputs to wait
// for. The other warps share k: each multiplies its slice, SLICE bytes, of each piece of PIECE_BYTES of all rows. It loads the
// inputs of its slices from memory into registers. At the end of a pass the block adds up the sums of its warps.
//
// mma.m16n8k16 multiplies two halves: rows g and g + 8 of thread 4 g + t. Any order of k gives the same sums, as long as inputs
// and weights agree: a thread has 8 neighbours of 32, k = 8 t to 8 t + 7, and uses them in two products.
//
// Macros:
//   COLUMNS      most requests: 2, 8 or 16
//   WARPS        warps that multiply
//   PIECE_BYTES  bytes of each row that a slot holds; WARPS * 64, or a multiple
//   TILES        most tiles of a pass
//   SLOTS        slots of the ring
//   WHOLE        1: k is a multiple of a piece
//   NORMED       1: B is the input of an RMS norm with the weights `gain`
//   ADDS         1: C = B @ A.T + R
//   GATED        1: A has `pair_rows` rows of gates and then as many of ups; C = SiLU(gate) * up
//   PDL          1: programmatic dependent launch: the next launch may begin at once, and copies of weights begin before the
//                previous launch has ended
#include "common/storage.cuh"
#include "common/ptx.cuh"
#include "shared/step_gemm.cuh"

enum { ROW_BYTES = PIECE_BYTES + STEP_GAP_BYTES, SLOT_BYTES = STEP_ROWS * ROW_BYTES };  // a slot is half of a tile
enum { SLICE = PIECE_BYTES / WARPS, CHUNKS = SLICE / 64 };  // bytes of a warp's slice of a row; its chunks
enum { GROUPS = (COLUMNS + 7) / 8, LANES = COLUMNS < 8 ? COLUMNS / 2 : 4 };  // groups of 8 columns; lanes t that have results
enum { TOGETHER = CHUNKS < 2 ? 1 : 2 };  // chunks of weights in registers at once
enum { OF_PIECE = CHUNKS * GROUPS, AHEAD = OF_PIECE > 4 ? 1 : OF_PIECE > 1 ? 8 / OF_PIECE : 4 };  // pieces of inputs held
enum { CHAINS = TILES * GROUPS > 2 ? 1 : 2 };  // independent sums of each output, so that products overlap
enum { PASS_HALVES = 2 * TILES, ALL_THREADS = 32 * (WARPS + 1) };
enum { RESULTS = STEP_ROWS * LANES };  // threads that have results of a tile and a group of columns
// Tiles whose sums are added up at once: their parts take at most STEP_PART_BYTES.
enum { MOST_AT_ONCE = STEP_PART_BYTES / (WARPS * GROUPS * RESULTS * 16) };
enum { AT_ONCE = TILES < MOST_AT_ONCE ? TILES : MOST_AT_ONCE };
static_assert(CHUNKS >= 1 && SLICE % 64 == 0 && AT_ONCE >= 1, "a warp has whole chunks");

__shared__ u64 barriers[2 * SLOTS + 1];  // "full" of each slot, "empty" of each slot, and "full" of the gain
__shared__ float4 parts[WARPS][AT_ONCE][GROUPS][RESULTS];
__shared__ float squares[WARPS][8 * GROUPS];

// The share of a block: `halves` halves of tiles from `first` on.
struct Work {
    u32 first, halves, pieces;
    __device__ Work(const StepGemm& p) : pieces(((u32)p.k_bytes + PIECE_BYTES - 1) / PIECE_BYTES) {
        const u32 block = blockIdx.x, each = (u32)p.each, more = (u32)p.more;
        first = (block * each + min(block, more)) << GATED, halves = (each + (block < more)) << GATED;
    }
};
__device__ inline u32 row_of(u32 half, const StepGemm& p) { return GATED ? half / 2 * STEP_ROWS : half * STEP_ROWS; }

// Copies slot contents in the order in which they are multiplied: pass by pass, piece by piece, half by half.
struct Copier {
    const StepGemm& p;
    const Work work;
    u64 weights, policy;
    u32 ring, full, lane;
    __device__ void copy(u32 i, u32 slot) const {
        const u32 of_pass = PASS_HALVES * work.pieces, pass = i / of_pass, in_pass = i - pass * of_pass;
        const u32 here = min((u32)PASS_HALVES, work.halves - pass * PASS_HALVES), piece = in_pass / here;
        const u32 half = work.first + pass * PASS_HALVES + in_pass - piece * here, own = lane;
        const u32 row = row_of(half, p), rows = min((u32)STEP_ROWS, (u32)p.rows - row);
        const u32 bytes = min((u32)PIECE_BYTES, (u32)p.k_bytes - piece * PIECE_BYTES), barrier = full + 8 * slot;
        if (own == 0) barrier_expect(barrier, rows * bytes);
        if (own >= rows) return;
        const u64 from = weights + (row + own + (GATED && half % 2 ? p.pair_rows : 0)) * p.a_step + piece * PIECE_BYTES;
        copy_bulk(ring + slot * SLOT_BYTES + own * ROW_BYTES, from, bytes, barrier, policy);
    }
    __device__ u32 all() const { return work.halves * work.pieces; }
    // Fill the whole ring. All warps share this, since a warp issues the copies of its lanes one after another.
    __device__ void begin(int warp) const {
        for (u32 i = warp; i < min((u32)SLOTS, all()); i += WARPS + 1)
            if (lane < STEP_ROWS) copy(i, i);
    }
    // Fill each slot again as soon as all warps have read it.
    __device__ void run() const {
        u32 slot = 0, phase = 0;
        for (u32 i = SLOTS; i < all(); ++i) {
            barrier_wait(full + 8 * (SLOTS + slot), phase);
            if (lane < STEP_ROWS) copy(i, slot);
            if (++slot == SLOTS) slot = 0, phase ^= 1;
        }
    }
};

// A thread's inputs of a piece: of each chunk, 8 neighbours of column g, and of column g + 8.
struct Held {
    uint4 of[CHUNKS][GROUPS];
};

struct Consumer {
    const StepGemm& p;
    const Work work;
    u64 from[GROUPS];  // addresses of the thread's first inputs
    u32 gain, ring, full, slot, phase;
    int warp, lane;
    float sums[TILES][CHAINS][GROUPS][4], of_squares[GROUPS];
    Held held[AHEAD];

    __device__ Consumer(const StepGemm& p, const Work& work, char* b, u32 gain, u32 ring, u32 full)
        : p(p), work(work), gain(gain), ring(ring), full(full), slot(0), phase(0), warp(threadIdx.x / 32),
          lane(threadIdx.x % 32), of_squares{} {
        const u32 within = warp * SLICE + lane % 4 * 16;
#pragma unroll
        for (int group = 0; group < GROUPS; ++group)  // a column that does not exist repeats the last one
            from[group] = (u64)b + min(group * 8 + lane / 4, (int)p.columns - 1) * p.b_step + within;
        this->gain += within;
    }
    // Return the number of chunks of this warp in a piece.
    __device__ int chunks_of(u32 piece) const {
        return WHOLE ? CHUNKS : min((int)CHUNKS, ((int)p.k_bytes - (int)(piece * PIECE_BYTES) - warp * SLICE) / 64);
    }
    __device__ void load(Held& to, u32 piece) const {
        const int chunks = chunks_of(piece);
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk)
#pragma unroll
            for (int group = 0; group < GROUPS; ++group)
                if (chunk < chunks)
                    to.of[chunk][group] = __ldcg((const uint4*)(from[group] + piece * PIECE_BYTES + chunk * 64));
    }
    __device__ void load_first() {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i)
            if (i < work.pieces) load(held[i], i);
    }
    // Multiply inputs by the norm's weights, and add up their squares. The factor 1 / rms follows at the end (`finish`).
    __device__ void norm(Held& x, u32 piece, int chunks, bool is_first) {
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            if (chunk >= chunks) break;
            const uint4 by = load_shared(gain + piece * PIECE_BYTES + chunk * 64);
#pragma unroll
            for (int group = 0; group < GROUPS; ++group) {
                Vector v;
                v.whole = x.of[chunk][group];
                if (is_first)
#pragma unroll
                    for (int i = 0; i < WIDTH; ++i) of_squares[group] += v.wide(i) * v.wide(i);
                const uint4& w = v.whole;
                x.of[chunk][group] = {multiply_two(w.x, by.x), multiply_two(w.y, by.y), multiply_two(w.z, by.z),
                                      multiply_two(w.w, by.w)};
            }
        }
    }
    __device__ void next_slot() {
        if (++slot == SLOTS) slot = 0, phase ^= 1;
    }
    // Multiply the piece of all `here` halves of the pass.
    __device__ void multiply(const Held& x, int chunks, u32 here) {
        const u32 within = lane / 4 * ROW_BYTES + warp * SLICE + lane % 4 * 16;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            if (2 * tile >= here) break;
            // Without a second half the first one stands for it, and its sums are not used.
            const bool has_two = 2 * tile + 1 < here;
            const u32 first = slot, low = ring + slot * SLOT_BYTES + within;
            barrier_wait(full + 8 * slot, phase);
            next_slot();
            const u32 second = slot, high = has_two ? ring + slot * SLOT_BYTES + within : low;
            if (has_two) barrier_wait(full + 8 * slot, phase), next_slot();
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; chunk += TOGETHER) {
                uint4 a[TOGETHER], b[TOGETHER];
#pragma unroll
                for (int i = 0; i < TOGETHER; ++i) {
                    if (chunk + i >= chunks) break;
                    a[i] = load_shared(low + (chunk + i) * 64), b[i] = load_shared(high + (chunk + i) * 64);
                }
#pragma unroll
                for (int i = 0; i < TOGETHER; ++i) {
                    if (chunk + i >= chunks) break;
                    const uint4(&by)[GROUPS] = x.of[chunk + i];
#pragma unroll
                    for (int group = 0; group < GROUPS; ++group)
                        mma(sums[tile][0][group], a[i].x, b[i].x, a[i].y, b[i].y, by[group].x, by[group].y);
#pragma unroll
                    for (int group = 0; group < GROUPS; ++group)
                        mma(sums[tile][CHAINS - 1][group], a[i].z, b[i].z, a[i].w, b[i].w, by[group].z, by[group].w);
                }
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(full + 8 * (SLOTS + first));
            if (lane == 0 && has_two) barrier_arrive(full + 8 * (SLOTS + second));
        }
    }
    __device__ void pass(u32 here, bool is_first) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int i = 0; i < CHAINS * GROUPS * 4; ++i) sums[tile][i / (GROUPS * 4)][i / 4 % GROUPS][i % 4] = 0.0f;
#pragma unroll 1
        for (u32 piece = 0; piece < work.pieces; piece += AHEAD) {
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                if (piece + i >= work.pieces) break;
                const int chunks = chunks_of(piece + i);
                if (NORMED) norm(held[i], piece + i, chunks, is_first);
                multiply(held[i], chunks, here);
                if (piece + i + AHEAD < work.pieces) load(held[i], piece + i + AHEAD);
            }
        }
    }
    __device__ void leave_squares() {
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
            float& sum = of_squares[group];
            sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
            sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
            if (lane % 4 == 0) squares[warp][8 * group + lane / 4] = sum;
        }
    }
    // Return 1 / rms of a column's inputs.
    __device__ float factor_of(int column) const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; ++i) sum += squares[i][column];
        return 1.0f / sqrtf(sum / (float)(p.k_bytes / sizeof(storage)) + 1e-5f);
    }
    // Add up the sums of all warps, finish the outputs of a pass, and store them. half: the first half of the pass.
    __device__ void finish(u32 half, u32 here, char* c, const char* r) {
#pragma unroll
        for (int begin = 0; begin < TILES; begin += AT_ONCE) {
            if (2 * begin >= here) break;
            if (begin) group_barrier();  // the parts of the tiles before have been read
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
                for (int group = 0; group < GROUPS; ++group)
                    if (begin + i < TILES && 2 * (begin + i) < here && lane % 4 < LANES) {
                        const int tile = begin + i < TILES ? begin + i : 0;
                        float sum[4];
#pragma unroll
                        for (int j = 0; j < 4; ++j)
                            sum[j] = sums[tile][0][group][j] + (CHAINS > 1 ? sums[tile][CHAINS - 1][group][j] : 0.0f);
                        parts[warp][i][group][lane / 4 * LANES + lane % 4] = {sum[0], sum[1], sum[2], sum[3]};
                    }
            group_barrier();
            for (int i = threadIdx.x; i < AT_ONCE * GROUPS * RESULTS; i += 32 * WARPS)
                result(i / (GROUPS * RESULTS), i / RESULTS % GROUPS, i % RESULTS, half + 2 * begin, here - 2 * begin, c, r);
        }
        group_barrier();
    }
    __device__ static void group_barrier() { barrier_of(1, 32 * WARPS); }
    // Finish a thread's results of a tile: two rows of two columns.
    __device__ void result(int tile, int group, int at, u32 half, u32 here, char* c, const char* r) const {
        if (2 * tile >= here) return;
        half += 2 * tile;
        float of[4] = {};
#pragma unroll
        for (int i = 0; i < WARPS; ++i) {
            const float4 part = parts[i][tile][group][at];
            of[0] += part.x, of[1] += part.y, of[2] += part.z, of[3] += part.w;
        }
        const int g = at / LANES;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int column = 8 * group + at % LANES * 2 + i;
            if (column >= p.columns) return;
            const float factor = NORMED ? factor_of(column) : 1.0f;
            const u32 row = row_of(half, p) + g, next = row_of(half + 1, p) + g;
            storage* const to = (storage*)(c + column * p.c_step);
            if (GATED) {
                const float gate = factor * of[i], up = factor * of[i + 2];
                if (row < p.rows) to[row] = narrow(gate / (1.0f + expf(-gate)) * up);
                continue;
            }
            const storage* const add = (const storage*)(r + column * p.r_step);
            if (row < p.rows) to[row] = narrow(factor * of[i] + (ADDS ? widen(__ldcg(add + row)) : 0.0f));
            if (2 * tile + 1 < here && next < p.rows)
                to[next] = narrow(factor * of[i + 2] + (ADDS ? widen(__ldcg(add + next)) : 0.0f));
        }
    }
};

extern "C" __global__ void __launch_bounds__(ALL_THREADS, BLOCKS)
    step_gemm(char* a, char* b, char* c, char* r, const __grid_constant__ StepGemm p) {
    extern __shared__ __align__(128) char shared[];
    const u32 ring = shared_address(shared), full = shared_address(barriers), gain = ring + SLOTS * SLOT_BYTES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (PDL) let_next_begin();
    if (threadIdx.x < 2 * SLOTS + 1) barrier_begin(full + 8 * threadIdx.x, threadIdx.x / SLOTS == 1 ? WARPS : 1);
    barriers_begun();
    __syncthreads();
    const Work work(p);
    const Copier copier{p, work, (u64)a, evict_first(), ring, full, (u32)lane};
    copier.begin(warp);
    if (warp == WARPS) {
        const u32 bytes = (u32)p.k_bytes, barrier = full + 16 * SLOTS;
        if (NORMED && lane == 0) barrier_expect(barrier, bytes), copy_bulk(gain, p.gain, bytes, barrier);
        copier.run();
        return;
    }
    Consumer own(p, work, b, gain, ring, full);
    if (PDL) wait_for_earlier();
    own.load_first();
    if (NORMED) barrier_wait(full + 16 * SLOTS, 0);
#pragma unroll 1
    for (u32 done = 0; done < work.halves; done += PASS_HALVES) {
        const u32 here = min((u32)PASS_HALVES, work.halves - done);
        own.pass(here, done == 0);
        if (NORMED && done == 0) own.leave_squares();
        if (done + PASS_HALVES < work.halves) own.load_first();
        own.finish(work.first + done, here, c, r);
    }
}
