// PTX instructions for which CUDA C++ has no functions. Addresses of shared memory have 32 bits.
__device__ inline u32 shared_address(const void* at) {
    u32 address = (u32)__cvta_generic_to_shared(at);
    asm volatile("" : "+r"(address));  // prevents the compiler from computing the address again at each use
    return address;
}

__device__ inline uint4 load_shared(u32 at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}
__device__ inline void store_shared(u32 at, const uint4& v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
// Begin a copy of 16 bytes to shared memory, which needs no register. The copy is complete once this thread has called
// wait_for_copies.
__device__ inline void copy_later(u32 to, u64 from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Make a group of this thread's copies that are in no group yet; wait until all groups but the last NEWEST are complete.
__device__ inline void group_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int NEWEST>
__device__ inline void wait_for_copies_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(NEWEST) : "memory");
}
// Force the compiler to compute the value here, not where it is used.
__device__ inline void settle(u64& value) { asm volatile("" : "+l"(value)); }
__device__ inline void settle(u32& value) { asm volatile("" : "+r"(value)); }

// Load a vector that no other thread of this product reads, without keeping it in the L1 cache.
__device__ inline uint4 read_once(const void* from) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}

// Relaxed loads and stores for all blocks of the GPU; they bypass the L1 cache. Each word is loaded or stored atomically, but
// not a vector of several words.
__device__ inline uint4 load_relaxed(u64 at) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
    return v;
}
__device__ inline void store_relaxed(u64 at, u32 value) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
__device__ inline void store_relaxed(u64 at, const uint2& v) {
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(v.x), "r"(v.y) : "memory");
}
__device__ inline void store_relaxed(u64 at, u64 value) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
__device__ inline u32 load_relaxed(const u32* from) {
    u32 value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}
__device__ inline u64 load_relaxed(const u64* from) {
    u64 value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}
__device__ inline u32 load_acquire(const u32* from) {
    u32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}
__device__ inline u64 load_acquire(const u64* from) {
    u64 value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}
// Add 1 with release semantics: a thread that loads the sum with acquire sees all earlier stores of this thread, and all stores
// that this thread had observed.
__device__ inline void count_release(u32* counter) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
// Add to a counter and return its value before, with acquire and release semantics.
__device__ inline u32 add_ordered(u32* counter, u32 value) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(value) : "memory");
    return before;
}
// Relaxed loads and stores of words that the host writes or reads. Each word is loaded or stored atomically.
__device__ inline u64 load_system(const u64* from) {
    u64 value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}
// Load two words. Each word is loaded atomically, but not the pair.
__device__ inline void load_two_system(const u64* from, u64& first, u64& second) {
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(from) : "memory");
}
__device__ inline void store_system(u64* to, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
// Store two words, also into the memory of another GPU. Each word is stored atomically, but not the pair.
__device__ inline void store_two_system(u64* to, u64 first, u64 second) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(first), "l"(second) : "memory");
}
// Store two words for all blocks of the GPU. Each word is stored atomically, but not the pair.
__device__ inline void store_two(ulonglong2* to, u64 first, u64 second) {
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(first), "l"(second) : "memory");
}
__device__ inline void fence() {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
// A fence that includes the host. A reader that sees a store_told made after the fence also sees the stores made before it.
__device__ inline void fence_system() {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}
__device__ inline void store_told(u64* to, u64 value) { store_system(to, value); }
// Load a word with acquire semantics: later loads see all that the host stored before the word.
__device__ inline u64 load_acquire_system(const u64* from) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}
__device__ inline void store_release_system(u64* to, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

// Programmatic dependent launch: the next launch on the same CUDA stream may begin while this launch runs. Its blocks start as
// blocks of this launch end, once every block of this launch has called let_next_begin. wait_for_earlier waits for the end of
// the previous launch.
__device__ inline void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ inline void wait_for_earlier() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// A barrier of some warps of the block: `threads` threads in all. id: from 1 to 15.
__device__ inline void barrier_of(int id, int threads) {
    asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Return the time, in ns, of the timer that all multiprocessors share.
__device__ inline u64 global_ns() {
    u64 ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

// Functions of the driver for kernels of a CUDA graph. No header or library declares them for kernels compiled at run time.
extern "C" __device__ void cudaGraphSetConditional(u64 handle, u32 value);
extern "C" __device__ int cudaGraphLaunch(void* graph, void* stream);
// Set the value of a conditional node's handle.
__device__ inline void set_condition(u64 handle, u32 value) { cudaGraphSetConditional(handle, value); }
// Launch this kernel's graph again, to begin when the present launch of it has ended. Return false if the driver refuses.
__device__ inline bool launch_again() {
    void* graph;
    asm volatile("mov.u64 %0, %%current_graph_exec;" : "=l"(graph));
    return cudaGraphLaunch(graph, (void*)0x0100000000000000ull) == 0;  // cudaStreamGraphTailLaunch
}
// End all work of the process on the GPU. The driver's next call returns an error.
__device__ inline void stop_with_error() { asm volatile("trap;"); }

// mbarriers in shared memory, by their address `at`. A phase of a barrier ends once `count` threads have arrived and bulk
// copies have written the expected number of bytes.
__device__ inline void barrier_begin(u32 at, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
// Make new barriers visible to other threads and to bulk copies. The threads that called barrier_begin call this.
__device__ inline void barriers_begun() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void barrier_arrive(u32 at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
__device__ inline void barrier_expect(u32 at, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
__device__ inline void barrier_wait(u32 at, u32 phase) {
    asm volatile(
        "{\n.reg .pred full;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 full, [%0], %1;\n@!full bra again;\n}" ::"r"(at),
        "r"(phase) : "memory");
}
// Clusters of two blocks: a block stores into the other block's shared memory (send_to_peer). The store counts its bytes at an
// mbarrier of the other block.

// A barrier of all threads of both blocks. Behind it the mbarriers of each block are visible to the other block.
__device__ inline void pair_together() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Return the address, in the other block's shared memory, that corresponds to an address in this block's.
__device__ inline u32 at_peer(u32 own_address) {
    u32 address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(own_address), "r"(blockIdx.x % 2 ^ 1));
    return address;
}
__device__ inline void send_to_peer(u32 to, u64 value, u32 barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u64 [%0], %1, [%2];" ::"r"(to), "l"(value),
                 "r"(barrier) : "memory");
}
// Return whether the phase has ended. `barrier_try` suspends the thread for a limited time first.
__device__ inline bool barrier_try(u32 at, u32 phase) {
    u32 full;
    asm volatile("{\n.reg .pred full;\nmbarrier.try_wait.parity.shared::cta.b64 full, [%1], %2;\nselp.u32 %0, 1, 0, full;\n}"
                 : "=r"(full) : "r"(at), "r"(phase) : "memory");
    return full;
}
__device__ inline bool barrier_test(u32 at, u32 phase) {
    u32 full;
    asm volatile("{\n.reg .pred full;\nmbarrier.test_wait.parity.shared::cta.b64 full, [%1], %2;\nselp.u32 %0, 1, 0, full;\n}"
                 : "=r"(full) : "r"(at), "r"(phase) : "memory");
    return full;
}
// Return a policy of the L2 cache by which copied lines are the first to be evicted.
__device__ inline u64 evict_first() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
// Begin a bulk copy from memory to shared memory. The copy counts its bytes at `barrier`.
__device__ inline void copy_bulk(u32 to, u64 from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier) : "memory");
}
__device__ inline void copy_bulk(u32 to, u64 from, u32 bytes, u32 barrier, u64 policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
}

#if DTYPE != 0
// Return two elements in one word, the first one in the lower half.
__device__ inline u32 narrow_two(float first, float second) {
    u32 both;
#if DTYPE == 1
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
#endif
    return both;
}
// Multiply two pairs of elements; each product is rounded once.
__device__ inline u32 multiply_two(u32 of, u32 by) {
    u32 both;
#if DTYPE == 1
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(both) : "r"(of), "r"(by));
#else
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(both) : "r"(of), "r"(by));
#endif
    return both;
}
__device__ inline u32 subtract_two(u32 from, u32 what) {
    u32 both;
#if DTYPE == 1
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(both) : "r"(from), "r"(what));
#else
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(both) : "r"(from), "r"(what));
#endif
    return both;
}
// As narrow_two, always to fp16.
__device__ inline u32 narrow_two_fp16(float first, float second) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}
// Return of * by + more for two pairs of fp16, rounded once.
__device__ inline u32 multiply_add_two_fp16(u32 of, u32 by, u32 more) {
    u32 both;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(both) : "r"(of), "r"(by), "r"(more));
    return both;
}
// Convert the four fp8 codes (e4m3) of a word to fp16.
__device__ inline void widen_four_fp8(u32& low, u32& high, u32 codes) {
    asm("{\n.reg .b16 first, second;\nmov.b32 {first, second}, %2;\ncvt.rn.f16x2.e4m3x2 %0, first;\n"
        "cvt.rn.f16x2.e4m3x2 %1, second;\n}" : "=r"(low), "=r"(high) : "r"(codes));
}
#if DTYPE == 1
#define MMA_TYPES "f32.f16.f16.f32"
#else
#define MMA_TYPES "f32.bf16.bf16.f32"
#endif
// C[16][8] += A[16][16] B[16][8], by a warp. A word of A or B holds two neighbours along k. Thread 4 g + t has these words:
// A at (row, k) = (g, 2 t), (g + 8, 2 t), (g, 2 t + 8), (g + 8, 2 t + 8); B of column g at k = 2 t and 2 t + 8.
// It has these elements of C at (row, column) = (g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1).
__device__ inline void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col." MMA_TYPES " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// As mma, always with A and B in fp16.
__device__ inline void mma_fp16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
#endif
