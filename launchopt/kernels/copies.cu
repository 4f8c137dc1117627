// Measure the bandwidth of bulk copies into the shared memory of all multiprocessors and, at the same time, the latency of
// loads that hit the L2 cache (devices/cuda/floors/bulk_copies.py). The megakernel copies weights by such copies and polls
// mailboxes by such loads.
//
// The first warp of each block copies slots of ROWS rows. The second warp loads one line per lane, `samples` times, and then
// stops the first warp. All blocks load the same lines, which hold zeros.
#include "common/storage.cuh"
#include "common/ptx.cuh"
#include "shared/copies.cuh"
enum { WARP = 32 };

// A position in the ring of slots: index of a slot, and phase of the slot's mbarrier.
struct Place {
    u32 index, phase;
    __device__ void next(u64 slots) {
        if (++index == slots) index = 0, phase ^= 1;
    }
};

// The warp that copies slots.
struct Stream {
    const Copies& q;
    u32 shared, full;  // shared addresses of the slots, and of their mbarriers
    int lane;
    Place filling, waited;  // the next slot to fill; the next slot to wait for
    u64 begun, ended;  // number of copies of slots that have begun; that have ended

    __device__ Stream(const Copies& q, const char* shared, const u64* full)
        : q(q), shared(shared_address(shared)), full(shared_address(full)), lane(threadIdx.x % WARP),
          filling{0, 0}, waited{0, 0}, begun(0), ended(0) {}
    __device__ u32 row(u32 slot, u32 row) const { return shared + (u32)(q.offset + (slot * ROWS + row) * q.pitch); }
    __device__ const char* source(u64 number, u32 row) const {
        return q.from + ((blockIdx.x * q.share_slots + number % q.share_slots) * ROWS + row) * ROW_BYTES;
    }
    __device__ void wait() {
        barrier_wait(full + waited.index * 8, waited.phase);
        __syncwarp();  // otherwise a lane may still wait when the slot is already filled again
        waited.next(q.slots), ++ended;
    }
    __device__ void copy(u64 policy) {
        if (begun - ended == q.slots) wait();
        const u32 barrier = full + filling.index * 8;
        if (lane == 0) barrier_expect(barrier, ROWS * ROW_BYTES);
        __syncwarp();
        if (lane < ROWS) copy_bulk(row(filling.index, lane), (u64)source(begun, lane), ROW_BYTES, barrier, policy);
        __syncwarp();
        filling.next(q.slots), ++begun;
    }
    // Return whether a slot holds other bytes than the source of its last copy.
    __device__ bool is_wrong() const {
        bool wrong = false;
        Place at = filling;
        const u64 last = min(begun, q.slots);
        for (u64 back = 1; back <= last; ++back) {
            at.index = (at.index ? at.index : (u32)q.slots) - 1;
            for (int vector = lane; vector < ROWS * ROW_BYTES / 16; vector += WARP) {
                const int row_of = vector * 16 / ROW_BYTES, byte = vector * 16 % ROW_BYTES;
                const uint4 there = load_shared(row(at.index, row_of) + byte);
                const uint4 right = *(const uint4*)(source(begun - back, row_of) + byte);
                wrong |= there.x != right.x || there.y != right.y || there.z != right.z || there.w != right.w;
            }
        }
        return __any_sync(0xFFFFFFFFu, wrong);
    }
    __device__ void run(const volatile u32& sampled, u64* results) {
        const u64 policy = evict_first(), begin_ns = global_ns();
        while (!__any_sync(0xFFFFFFFFu, sampled)) copy(policy);
        while (ended < begun) wait();
        const u64 end_ns = global_ns();
        const bool wrong = is_wrong();
        if (lane) return;
        results[BYTES] = begun * ROWS * ROW_BYTES, results[BEGIN_NS] = begin_ns, results[END_NS] = end_ns;
        if (wrong) results[WRONG] = 1;
    }
};

// Measure the cycles of `samples` loads of one line per lane, with pauses of `gap` cycles. The second warp runs this.
__device__ void sample(const Copies& q, u64* results) {
    const int lane = threadIdx.x % WARP;
    const char* line = q.lines + lane * LINE_BYTES + blockIdx.x % (LINE_BYTES / 16) * 16;
    for (u64 i = 0; i < q.samples; ++i, line += WARP * LINE_BYTES) {
        for (const u64 since = clock64(); clock64() - since < q.gap;) {}
        __syncwarp();
        const u64 since = clock64();
        const bool wrong = __any_sync(0xFFFFFFFFu, load_relaxed((u64)line).x != 0);
        const u64 cycles = clock64() - since;
        if (lane) continue;
        q.waits[i * gridDim.x + blockIdx.x] = (u32)cycles;
        if (wrong) results[WRONG] = 1;
    }
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(2 * WARP, 1) copies(const Copies q) {
    extern __shared__ __align__(128) char shared[];
    __shared__ u64 full[MOST_SLOTS];
    __shared__ u32 sampled;
    if (threadIdx.x < MOST_SLOTS) barrier_begin(shared_address(full + threadIdx.x), 1);
    barriers_begun();
    if (threadIdx.x == 0) sampled = 0;
    __syncthreads();
    u64* results = q.results + blockIdx.x * RESULTS;
    if (threadIdx.x < WARP) {
        if (q.slots) Stream(q, shared, full).run(sampled, results);
    } else {
        sample(q, results);
        if (threadIdx.x == WARP) *(volatile u32*)&sampled = 1;
    }
}
