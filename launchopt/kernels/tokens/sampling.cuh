// Sampling: choose a token by a row of logits. One block works on one row. The kernel feedback.cu and the end of a whole step
// (tokens/step_end.cuh) use these functions. devices/feedback/in_launch.py defines the constants and -DKIND.
//
// Logits are compared as keys: unsigned integers in the order of the floats. Key 0 is below the keys of all floats.
//
// top_k and top_p keep all keys from a threshold on. The threshold is the largest key for which the kept keys have a total
// weight of at least `needed`. For top_k each key has weight 1; for top_p a key has the weight of its probability. The
// threshold is found by bisection, first among the threads' largest keys (one per thread). All keys together weigh at least as
// much as these, so the first result is a lower bound of the threshold. Usually a few hundred logits are above the bound. If
// shared memory cannot hold all logits above the bound (flat logits, a large k), the bisection goes on over all logits until it
// can.
namespace sampling {
#include "shared/sampling.cuh"
enum { WARPS = THREADS / 32, PIECES = 32, NOT_A_NUMBER = ~0 };  // NOT_A_NUMBER: the key of a NaN, above all others

struct Scratch {  // shared memory of a block
    union {
        u32 keys[CAPACITY];  // used with sampling
        double sums[THREADS];  // used without sampling
    };
    u64 part[PIECES + 1];  // values of each warp or piece; then a result
    u32 filled;  // number of keys
};

// Return the key of a logit.
__device__ u32 key_of(float value) {
    u32 bits = __float_as_uint(value);
    if (bits == 0x80000000u) bits = 0u;  // -0.0 gets the key of 0.0
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ float value_of(u32 key) { return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key); }

__device__ u64 larger(u64 a, u64 b) { return a > b ? a : b; }

// Return to all threads the sum (SUM), or the maximum, of their values. part: as in Scratch. The next call may begin while a
// thread still reads part[PIECES], since it first writes only the other elements.
template <bool SUM> __device__ u64 combined(u64 value, u64* part) {
    for (int step = 16; step; step >>= 1) {
        u64 other = __shfl_xor_sync(0xFFFFFFFFu, value, step);
        value = SUM ? value + other : larger(value, other);
    }
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x < 32) {
        value = threadIdx.x < WARPS ? part[threadIdx.x] : 0;
        for (int step = 16; step; step >>= 1) {
            u64 other = __shfl_xor_sync(0xFFFFFFFFu, value, step);
            value = SUM ? value + other : larger(value, other);
        }
        if (threadIdx.x == 0) part[PIECES] = value;
    }
    __syncthreads();
    return part[PIECES];
}

// Return a random number: a hash of `value`.
__device__ u64 mixed(u64 value) {
    value = (value ^ (value >> 30)) * MIX_A;
    value = (value ^ (value >> 27)) * MIX_B;
    return value ^ (value >> 31);
}

struct Scale { float largest; double inverse_temperature; };

// Return the weight of a logit, its exponential in fixed point; the largest logit has 2**WEIGHT_BITS.
__device__ u64 weight_of(float value, const Scale& scale) {
    if (value == scale.largest) return 1ull << WEIGHT_BITS;
    double exponent = __dmul_rn(__dadd_rn((double)value, -(double)scale.largest), scale.inverse_temperature);
    if (!(exponent > LEAST_EXPONENT)) return 0;
    const double powers[] = {POWERS};
    double y = __dmul_rn(exponent, LOG2_E);
    double n = floor(__dadd_rn(y, 0.5));
    double fraction = __dadd_rn(y, -n);
    double power = powers[LAST_POWER];
#pragma unroll
    for (int i = LAST_POWER - 1; i >= 0; --i) power = __dadd_rn(__dmul_rn(power, fraction), powers[i]);
    return (u64)__dmul_rn(power, (double)(1ull << ((int)n + WEIGHT_BITS)));
}
// Return the weight of a key in the search for the threshold.
__device__ u64 load_of(u32 key, const Scale& scale) { return KIND == TOP_K ? 1 : weight_of(value_of(key), scale); }

// A row of logits. `each` visits some of the elements in each thread, in the order of their indices. A thread loads 16 bytes at
// a time if the row is aligned, and issues AHEAD loads at once.
struct Logits {
    const storage* values;
    u32 count;
    __device__ u32 operator[](u32 i) const { return key_of(widen(values[i])); }
    template <int AHEAD = 2, class Visit> __device__ void each(Visit visit) const {
        const u32 whole = aligned(values) ? count / WIDTH : 0, step = THREADS;
        // If the compiler unrolled a simple loop, the loads of its last pass would follow one another. This loop issues all
        // AHEAD loads at once in its last pass, too.
        for (u32 i = threadIdx.x; i < whole; i += AHEAD * step) {
            Vector vectors[AHEAD];
#pragma unroll
            for (u32 a = 0; a < AHEAD; ++a)
                if (i + a * step < whole) vectors[a].whole = ((const uint4*)values)[i + a * step];
#pragma unroll
            for (u32 a = 0; a < AHEAD; ++a) {
                if (i + a * step >= whole) break;
#pragma unroll
                for (u32 j = 0; j < WIDTH; ++j) visit((i + a * step) * WIDTH + j, widen(vectors[a].parts[j]));
            }
        }
        for (u32 i = whole * WIDTH + threadIdx.x; i < count; i += step) visit(i, widen(values[i]));
    }
};
// Some keys of a row, in shared memory.
struct Keys {
    const u32* keys;
    u32 count;
    template <class Visit> __device__ void each(Visit visit) const {
#pragma unroll 8
        for (u32 i = threadIdx.x; i < count; i += THREADS) visit(i, keys[i]);
    }
};
__device__ u32 key_at(const Logits&, float value) { return key_of(value); }
__device__ u32 key_at(const Keys&, u32 key) { return key; }
// A range of keys that contains the threshold. Keys >= low have a total weight of at least `needed`. Keys >= high have the
// total weight `above`, which is less. `inside` is the number of keys in the range: low <= key < high.
struct Range { u32 low, high; u64 above, inside; };

// Bisect the range until it holds at most `few` keys, or keys of only one value.
template <class Some>
__device__ void bisect(const Some& some, u64 few, u64 needed, const Scale& scale, Range& range, u64* part) {
    while (range.inside > few && range.high - range.low > 1) {
        u32 middle = range.low + (range.high - range.low) / 2;
        u64 load = 0, inside = 0;
        some.each([&](u32, auto value) {
            const u32 key = key_at(some, value);
            if (key >= middle && key < range.high) {
                load += load_of(key, scale);
                ++inside;
            }
        });
        load = combined<true>(load, part) + range.above;
        inside = combined<true>(inside, part);
        if (load >= needed) {
            range.low = middle;
            range.inside = inside;
        } else {
            range.high = middle;
            range.above = load;
            range.inside -= inside;
        }
    }
}

// Return the threshold, the smallest key that is kept. own: this thread's largest key; 0: the thread has no key.
__device__ u32 threshold_of(const Logits& logits, u32 own, u64 needed, const Scale& scale, Scratch& scratch) {
    u32* keys = scratch.keys;
    u64* part = scratch.part;
    const u32 end = key_of(scale.largest) + 1;
    Range range = {0, end, 0, THREADS};
    keys[threadIdx.x] = own;
    if (threadIdx.x == 0) scratch.filled = 0;
    if (combined<true>(own ? load_of(own, scale) : 0, part) >= needed)
        bisect(Keys{keys, THREADS}, 1, needed, scale, range, part);
    range.high = end;
    range.above = 0;
    u64 inside = 0;
    logits.each([&](u32, float value) { inside += key_of(value) >= range.low; });
    range.inside = combined<true>(inside, part);
    bisect(logits, CAPACITY, needed, scale, range, part);
    if (range.inside > CAPACITY) return range.low;  // all keys of the range are equal
    logits.each([&](u32, float value) {
        const u32 key = key_of(value);
        if (key >= range.low && key < range.high) keys[atomicAdd(&scratch.filled, 1u)] = key;
    });
    __syncthreads();
    bisect(Keys{keys, (u32)range.inside}, 1, needed, scale, range, part);
    return range.low;
}

// Return the first kept token at which the running sum of weights exceeds its target. The target is a random share (bits) of
// the total weight. Warps add up each of PIECES pieces of a range; the piece in which the sum reaches the target is the next
// range.
__device__ u32 chosen_of(const Logits& logits, u32 threshold, u64 bits, const Scale& scale, u64* part) {
    u32 begin = 0, length = logits.count;
    u64 target = 0;
    while (length > 1) {
        const u32 piece = (length + PIECES - 1) / PIECES, end = begin + length;
        for (u32 own = threadIdx.x / 32; own < PIECES; own += WARPS) {
            const u32 stop = min(begin + (own + 1) * piece, end);
            u64 sum = 0;
#pragma unroll 8
            for (u32 i = begin + own * piece + threadIdx.x % 32; i < stop; i += 32) {
                u32 key = logits[i];
                if (key >= threshold) sum += weight_of(value_of(key), scale);
            }
            for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
            if (threadIdx.x % 32 == 0) part[own] = sum;
        }
        __syncthreads();
        if (length == logits.count) {
            u64 total = 0;
            for (int i = 0; i < PIECES; ++i) total += part[i];
            target = bits * (total >> U_BITS) + ((bits * (total & ((1ull << U_BITS) - 1))) >> U_BITS);
        }
        u32 at = 0;
        while (at < PIECES - 1 && target >= part[at]) target -= part[at++];
        __syncthreads();
        begin += at * piece;
        length = min(piece, end - begin);
    }
    return begin;
}

// Return a word that orders logits in the search for the largest: the key, and below it the complement of the index. Of equal
// logits, the one with the smallest index has the largest word.
__device__ u64 found_at(float value, u32 at) {
    return (u64)(value != value ? (u32)NOT_A_NUMBER : key_of(value)) << 32 | ~at;
}
// Return the largest `found_at` of this thread's elements; 0 if it has none.
__device__ u64 largest_of(const Logits& logits) {
    float best = __uint_as_float(0x7FC00000u);  // a NaN, so that the comparison below takes the first element
    u32 at = ~0u;
    bool wrong = false;
    // Floats are compared, not keys: a key takes several operations, and a thread may have hundreds of elements.
    logits.each<8>([&](u32 i, float value) {
        if (!(value <= best)) best = value, at = i;  // of equal elements, keep the first
        wrong |= value != value;
    });
    if (wrong) return (u64)(u32)NOT_A_NUMBER << 32;
    return at == ~0u ? 0 : found_at(best, at);
}
__device__ int id_of(u64 largest) { return largest >> 32 == (u32)NOT_A_NUMBER ? NO_ID : (int)~(u32)largest; }

// Return the token of a row of logits, or NO_ID if a logit is not a number. counter, start: counter and seed that select the
// random number.
__device__ int sampled(const storage* values, u32 vocab, u64 counter, u64 start, double inverse_temperature, u32 k,
                       double p, Scratch& scratch) {
    u64* part = scratch.part;
    const Logits logits = {values, vocab};
    u64 best = largest_of(logits);
    const u32 own = (u32)(best >> 32);
    best = combined<false>(best, part);
    if (KIND == GREEDY || id_of(best) == NO_ID) return id_of(best);
    const Scale scale = {value_of((u32)(best >> 32)), inverse_temperature};
    u32 threshold = 0;
    if (KIND == TOP_K) {
        if (k < vocab) threshold = threshold_of(logits, own, k, scale, scratch);
    } else if (p < 1.0) {
        u64 total = 0;
        logits.each([&](u32, float value) { total += weight_of(value, scale); });
        total = combined<true>(total, part);
        u64 needed = (u64)ceil(__dmul_rn(p, __ull2double_rn(total)));
        needed = needed < 1 ? 1 : needed > total ? total : needed;
        threshold = threshold_of(logits, own, needed, scale, scratch);
    }
    const u64 bits = mixed(start + (counter + 1) * GOLDEN) >> (64 - U_BITS);
    return (int)chosen_of(logits, threshold, bits, scale, part);
}
}  // namespace sampling
