// The part of CUDA that kernels of launchopt/kernels need, for a C++ compiler. Each thread of a grid is a fiber, and a random
// generator chooses the next one (fibers.cpp). Barriers, warp collectives and mbarriers work as on the device. Bulk copies
// arrive late (ptx.cpp). It finds wrong indices, threads that miss a barrier, waits that never end, and slots that are filled
// too early. Kernels built for it also report races between threads (races.h).
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

struct uint2 {
    unsigned x, y;
};
struct uint3 {
    unsigned x, y, z;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(16) ulonglong2 {
    unsigned long long x, y;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
typedef unsigned u32;
typedef unsigned long long u64;
#define __device__
#define __global__
#define __grid_constant__
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(bytes) alignas(bytes)
#define __shared__ static __attribute__((section("shared_memory")))

template <class A, class B> auto min(A a, B b) {
    using C = std::common_type_t<A, B>;
    return (C)a < (C)b ? (C)a : (C)b;
}
template <class A, class B> auto max(A a, B b) {
    using C = std::common_type_t<A, B>;
    return (C)a > (C)b ? (C)a : (C)b;
}
inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    return bits;
}
inline float rsqrtf(float value) { return 1.0f / sqrtf(value); }
inline float __expf(float value) { return expf(value); }
inline float __fdividef(float a, float b) { return a / b; }
inline void sincospi(double turns, double* sine, double* cosine) { *sine = sin(M_PI * turns), *cosine = cos(M_PI * turns); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return sqrt(a); }
inline float __double2float_rn(double a) { return (float)a; }
inline double __ull2double_rn(unsigned long long a) { return (double)a; }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(unsigned bits) { return __builtin_ffs((int)bits); }
template <class T> T __ldcg(const T* from) { return *from; }
template <class T> T __ldcs(const T* from) { return *from; }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    const unsigned long long both = (unsigned long long)high << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
    return result;
}

// -- Threads. These values depend on the running fiber, so they are read anew each time.
namespace host {
unsigned thread();
unsigned threads();
uint3 block();
uint3 blocks();
char* dynamic_begin();
void yield();
void run_thread(void* arguments);  // runs one thread of the kernel
void give(const void* value, size_t bytes);  // offers a value to the own warp; returns when all lanes have offered theirs
void given(unsigned lane, void* value, size_t bytes);  // copies the value that a lane offered last
unsigned ballot(bool own);
void multiply(int dtype, float (&c)[4], const u32 (&own)[6]);  // one mma instruction
}  // namespace host
#define DIMENSION(name, value)                           \
    struct name {                                        \
        operator unsigned() const { return host::value; } \
    }
struct ThreadIdx {
    DIMENSION(X, thread()) x;
    unsigned y = 0, z = 0;
};
struct BlockDim {
    DIMENSION(X, threads()) x;
    unsigned y = 1, z = 1;
};
struct BlockIdx {
    DIMENSION(X, block().x) x;
    DIMENSION(Y, block().y) y;
    DIMENSION(Z, block().z) z;
};
struct GridDim {
    DIMENSION(X, blocks().x) x;
    DIMENSION(Y, blocks().y) y;
    DIMENSION(Z, blocks().z) z;
};
inline ThreadIdx threadIdx;
inline BlockDim blockDim;
inline BlockIdx blockIdx;
inline GridDim gridDim;
inline char* dynamic_memory() { return host::dynamic_begin(); }

void __syncthreads();
void __barrier_sync_count(unsigned id, unsigned count);
void __syncwarp();
void __threadfence();
void count_release(u32* counter);
u32 add_ordered(u32* counter, u32 value);
inline void __threadfence_system() { __threadfence(); }
inline void __nanosleep(unsigned) { host::yield(); }
u32 atomicAdd(u32* to, u32 value);
u64 atomicAdd(u64* to, u64 value);
u32 atomicOr(u32* to, u32 value);

template <class T> T __shfl_sync(unsigned, T value, int lane) {
    T other;
    host::give(&value, sizeof value);
    host::given(lane, &other, sizeof other);
    return other;
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits) {
    return __shfl_sync(mask, value, host::thread() % 32 ^ bits);
}
// The result of `f` over a value of each lane.
template <class F> unsigned over_lanes(unsigned value, F f) {
    host::give(&value, sizeof value);
    for (int lane = 0; lane < 32; ++lane) {
        unsigned other;
        host::given(lane, &other, sizeof other);
        value = f(value, other);
    }
    return value;
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
    return over_lanes(value, [](unsigned a, unsigned b) { return a > b ? a : b; });
}
inline unsigned __ballot_sync(unsigned, bool own) { return host::ballot(own); }
inline bool __all_sync(unsigned mask, bool own) { return __ballot_sync(mask, own) == 0xFFFFFFFFu; }
inline bool __any_sync(unsigned mask, bool own) { return __ballot_sync(mask, own) != 0; }

// -- Replacements of common/ptx.cuh.
u32 shared_address(const void* pointer);
inline void settle(u64&) {}
inline void settle(u32&) {}
uint4 load_shared(u32 address);
void store_shared(u32 address, const uint4& value);
void copy_later(u32 to, u64 from);
void wait_for_copies();
void group_copies();
void wait_for_groups(unsigned left);
template <int NEWEST>
void wait_for_copies_but() {
    wait_for_groups(NEWEST);
}
inline uint4 read_once(const void* from) { return *(const uint4*)from; }
uint4 load_relaxed(u64 address);
u32 load_relaxed(const u32* from);
u64 load_relaxed(const u64* from);
void store_relaxed(u64 address, u32 value);
void store_relaxed(u64 address, const uint2& value);
void store_relaxed(u64 address, u64 value);
u32 load_acquire(const u32* from);
u64 load_acquire(const u64* from);
u64 load_system(const u64* from);
void load_two_system(const u64* from, u64& first, u64& second);
u64 load_acquire_system(const u64* from);
void store_system(u64* to, u64 value);
void store_two_system(u64* to, u64 first, u64 second);
void store_two(ulonglong2* to, u64 first, u64 second);
void store_release(u64* to, u64 value);
void store_release_system(u64* to, u64 value);
void fence();
void fence_system();
void store_told(u64* to, u64 value);
inline void let_next_begin() {}
inline void wait_for_earlier() {}  // launches never overlap here
inline void barrier_of(int id, int threads) { __barrier_sync_count(id, threads); }
u64 clock64();
u64 global_ns();
inline void set_condition(u64 handle, u32 value) { *(u32*)handle = value; }  // the handle is an address here
inline bool launch_again() { return true; }  // the test launches again
inline void stop_with_error() {}
void barrier_begin(u32 address, u32 count);
inline void barriers_begun() {}
void barrier_expect(u32 address, u32 bytes);
void barrier_arrive(u32 address);
void barrier_wait(u32 address, u32 phase);
bool barrier_try(u32 address, u32 phase);
inline bool barrier_test(u32 address, u32 phase) { return barrier_try(address, phase); }
inline u64 evict_first() { return 0; }
void copy_bulk(u32 to, u64 from, u32 bytes, u32 barrier, u64 policy = 0);
void pair_together();
inline u32 at_peer(u32 own_address) { return own_address; }
void send_to_peer(u32 to, u64 value, u32 barrier);

// -- 16-bit numbers in their storage form.
inline float half_bits(unsigned short bits) {
    _Float16 value;
    memcpy(&value, &bits, 2);
    return (float)value;
}
// e4m3, rounded to nearest, ties to even, at most 448.
inline u32 fp8_bits(float wide) {
    const u32 sign = __float_as_uint(wide) >> 24 & 0x80u;
    if (wide != wide) return sign | 0x7Fu;
    const float size = fabsf(wide);
    const int exponent = size < 0x1p-6f ? -6 : ilogbf(fminf(size, 448.0f));
    const int steps = (int)nearbyintf(fminf(size, 512.0f) / ldexpf(1.0f, exponent - 3));  // 16: the next power of two
    return sign | (u32)min((exponent + 6) * 8 + steps, 0x7E);
}
inline unsigned short bits_of_half(float wide) {
    const _Float16 value = (_Float16)wide;
    unsigned short bits;
    memcpy(&bits, &value, 2);
    return bits;
}
#ifdef DTYPE
inline u32 narrow_two(float first, float second) {
#if DTYPE == 1
    return (u32)bits_of_half(first) | (u32)bits_of_half(second) << 16;
#else
    auto rounded = [](float value) {  // to bfloat16, ties to even
        const u32 bits = __float_as_uint(value);
        return (bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FFFu : bits + 0x7FFFu + (bits >> 16 & 1u) >> 16;
    };
    return rounded(first) | rounded(second) << 16;
#endif
}
inline float wide_half(u32 bits) {
#if DTYPE == 1
    return half_bits((unsigned short)bits);
#else
    return __uint_as_float(bits << 16);
#endif
}
inline u32 multiply_two(u32 of, u32 by) {
    return narrow_two(wide_half(of & 0xFFFF) * wide_half(by & 0xFFFF), wide_half(of >> 16) * wide_half(by >> 16));
}
inline u32 subtract_two(u32 from, u32 what) {
    return narrow_two(wide_half(from & 0xFFFF) - wide_half(what & 0xFFFF), wide_half(from >> 16) - wide_half(what >> 16));
}
inline void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    const u32 own[6] = {a0, a1, a2, a3, b0, b1};
    host::multiply(DTYPE, c, own);
}
inline u32 narrow_two_fp16(float first, float second) { return (u32)bits_of_half(first) | (u32)bits_of_half(second) << 16; }
inline u32 multiply_add_two_fp16(u32 of, u32 by, u32 more) {
    auto at = [](u32 both, int shift) { return (double)half_bits((unsigned short)(both >> shift)); };
    return narrow_two_fp16((float)(at(of, 0) * at(by, 0) + at(more, 0)), (float)(at(of, 16) * at(by, 16) + at(more, 16)));
}
inline void widen_four_fp8(u32& low, u32& high, u32 codes) {
    // The exponent and mantissa of e4m3 are those of a half whose exponent has another bias.
    auto wide = [](u32 code) { return 256.0f * half_bits((unsigned short)((code & 0x80u) << 8 | (code & 0x7Fu) << 7)); };
    low = narrow_two_fp16(wide(codes), wide(codes >> 8)), high = narrow_two_fp16(wide(codes >> 16), wide(codes >> 24));
}
inline void mma_fp16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    const u32 own[6] = {a0, a1, a2, a3, b0, b1};
    host::multiply(1, c, own);
}
#endif
