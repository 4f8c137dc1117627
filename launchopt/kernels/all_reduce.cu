// ALL_REDUCE: C = the sum of the B of all ranks, the GPUs that split a model, in fp32 and in the order of the ranks. All ranks
// add the same parts in the same order, so that they get the same bits.
// ALL_GATHER: C = the B of all ranks, side by side.
// REDUCE_ADD: C = A + the sum of the B of all ranks. REDUCE_ADD_NORM: and beside it the RMS norm of C.
//
// A generation is the number of these exchanges at which a block has taken part. It is counted in device memory, so that a CUDA
// graph can repeat the launch. All ranks launch the same grid, whose blocks must run at the same time.
//
// Small parts, of at most one vector of 16 bytes for each thread of PUSH_BLOCKS blocks, are pushed: each thread stores its
// vector into the memory of every other rank, and waits for theirs in its own memory. So data cross the link once, and no flag
// follows them. Each word of a line has 4 bytes of data and, above them, the generation; a word is stored and loaded
// atomically. Lines of two generations alternate: a rank stores generation g over g - 2, and it has received g - 1 from all
// others, which they sent behind the end of their launch of g - 2.
//
// For larger parts each block exchanges flags with the same block of the other ranks, and then reads their parts. No second
// barrier is needed: a rank writes a part to the same place again only behind a later exchange, at which the others arrive
// when they have read this part.
//
// -DPDL=1: programmatic dependent launch, as in ops.cu.
#include "common/storage.cuh"
#include "common/ptx.cuh"
#include "shared/all_reduce.cuh"
#ifndef PDL
#define PDL 0
#endif

enum { HALF_WORDS = 2 * ALL_REDUCE_THREADS, POLLS = 256 };  // polls between two looks at the clock

// The time until which this thread waits for other ranks.
struct Patience {
    u64 until_ns;
    u32 polls;
    __device__ Patience() : until_ns(0), polls(0) {}
    // Return whether the limit is over, and say so in the account.
    __device__ bool is_over(const Peers& peers) {
        if (++polls % POLLS) return false;
        const u64 now_ns = global_ns();
        if (!until_ns) until_ns = now_ns + peers.limit_ns;
        if (now_ns <= until_ns) return false;
        peers.account[GAVE_UP] = 1;
        return true;
    }
};

// Announce to all ranks that this rank's part is in memory, and wait until theirs are. Call it with one thread for each rank.
__device__ inline void meet(const Peers& peers, u64 generation) {
    store_release_system(peers.flags[threadIdx.x] + blockIdx.x, generation);
    const u64* from = peers.arrived + threadIdx.x * ALL_REDUCE_BLOCKS + blockIdx.x;
    Patience patience;
    while (load_acquire_system(from) < generation)
        if (patience.is_over(peers)) return;
}

__device__ inline u64 tagged(u32 word, u32 tag) { return (u64)tag << 32 | word; }

// Store a vector into lines of another rank.
__device__ inline void push(u64* to, const Vector& part, u32 tag) {
    store_two_system(to, tagged(part.words[0], tag), tagged(part.words[1], tag));
    store_two_system(to + HALF_WORDS, tagged(part.words[2], tag), tagged(part.words[3], tag));
}

// Wait for a vector of another rank, and return it.
__device__ inline Vector pulled(const u64* from, u32 tag, const Peers& peers) {
    u64 words[4] = {};
    Patience patience;
    for (bool all = false; !all && !patience.is_over(peers);) {
        load_two_system(from, words[0], words[1]);
        load_two_system(from + HALF_WORDS, words[2], words[3]);
        all = true;
#pragma unroll
        for (int i = 0; i < 4; ++i) all &= (u32)(words[i] >> 32) == tag;
    }
    Vector part;
#pragma unroll
    for (int i = 0; i < 4; ++i) part.words[i] = (u32)words[i];
    return part;
}

// Where a vector lies: bytes behind the first B and the first C, and the elements that are left in its row.
struct Place {
    i64 from, to, left;
    __device__ Place(const AllReduce& p, i64 vectors, i64 i) {
        const i64 row = i / vectors, first = i % vectors * WIDTH;
        left = p.m - first;
        from = row / p.n * p.stride_b + (row % p.n * p.ldb + first) * (i64)sizeof(storage);
        to = row / p.n * p.stride_c + (row % p.n * p.ldc + first) * (i64)sizeof(storage);
    }
};

// What becomes of a vector of every rank: their sum, or all of them, each `m` elements behind the one before.
template <bool GATHERS> struct Output {
    storage* to;
    i64 m, left;
    bool whole;
    float sum[WIDTH];
    __device__ Output(const AllReduce& p, char* c, const Place& place, bool whole)
        : to((storage*)(c + place.to)), m(p.m), left(place.left), whole(whole), sum{} {}
    // Take the vectors in the order of the ranks.
    __device__ void take(int rank, const Vector& part) {
        if (!GATHERS) {
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) sum[i] += widen(part.parts[i]);
        } else if (whole && left >= WIDTH) {
            *(uint4*)(to + rank * m) = part.whole;
        } else {
#pragma unroll
            for (int i = 0; i < WIDTH; ++i)
                if (i < left) to[rank * m + i] = part.parts[i];
        }
    }
    __device__ void end() const {
        if (!GATHERS) store(to, sum, left, whole);
    }
};

// Push this thread's vector to the other ranks and take theirs. Return the time at which the last of them was here.
template <class Out> __device__ u64 exchange_pushed(const Peers& peers, const Vector& own, Out& out, u64 generation) {
    const u64 line = ((generation & 1) * PUSH_BLOCKS + blockIdx.x) * 2 * HALF_WORDS + 2 * threadIdx.x;
    for (int other = 1; other < peers.size; ++other)  // each rank begins with another one
        push(peers.lines[(peers.rank + other) % peers.size] + line, own, (u32)generation);
    u64 met_ns = 0;
    for (int rank = 0; rank < peers.size; ++rank) {
        out.take(rank, rank == peers.rank ? own : pulled(peers.pushed + rank * LINE_WORDS + line, (u32)generation, peers));
        if (rank != peers.rank && blockIdx.x == 0 && threadIdx.x == 0) met_ns = global_ns();
    }
    return met_ns;
}

// Take the parts of all ranks, which are complete. own: this rank's.
template <class Out>
__device__ void exchange_read(const Peers& peers, const void* own, i64 left, bool whole, Out& out) {
    const u64 from = (u64)own - peers.parts[peers.rank];
    Vector part[MOST_RANKS];  // all are on their way before the first is added
#pragma unroll
    for (int rank = 0; rank < MOST_RANKS; ++rank)
        if (rank < peers.size) part[rank] = read((const storage*)(peers.parts[rank] + from), left, whole);
#pragma unroll
    for (int rank = 0; rank < MOST_RANKS; ++rank)
        if (rank < peers.size) out.take(rank, part[rank]);
}

// An exchange at which this block takes part.
struct Exchange {
    const Peers& peers;
    u64 begin_ns, generation, met_ns;
    bool is_first;
    __device__ Exchange(u64 peers)
        : peers(*(const Peers*)peers), generation(this->peers.generations[blockIdx.x] + 1), met_ns(0),
          is_first(blockIdx.x == 0 && threadIdx.x == 0) {
        begin_ns = is_first ? global_ns() : 0;
    }
    // Let all ranks wait for each other's parts.
    __device__ void meet_all() {
        if (threadIdx.x < peers.size) meet(peers, generation);
        __syncthreads();
        met_ns = is_first ? global_ns() : 0;
    }
    // counts: whether it goes into the account of all-reduces.
    __device__ void end(bool counts) {
        __syncthreads();
        if (threadIdx.x == 0) peers.generations[blockIdx.x] = generation;
        if (!is_first || !counts) return;
        peers.account[CALLS] += 1;
        peers.account[WAIT_NS] += met_ns - begin_ns;
        peers.account[TOTAL_NS] += global_ns() - begin_ns;
    }
};

template <bool GATHERS> __device__ void exchange(const char* b, char* c, const AllReduce& p) {
    typedef Output<GATHERS> Out;
#if PDL
    let_next_begin();
    wait_for_earlier();
#endif
    Exchange turn(p.peers);
    const i64 vectors = (p.m + WIDTH - 1) / WIDTH, all = p.commands * p.n * vectors, step = (i64)gridDim.x * blockDim.x;
    const i64 first = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    const bool whole = aligned(b, p.ldb) && aligned(c, p.ldc) && aligned((void*)(p.stride_b | p.stride_c), GATHERS ? p.m : 0);
    if (all <= step && gridDim.x <= PUSH_BLOCKS) {
        const Place place(p, vectors, first);
        Out out(p, c, place, whole);
        if (first < all) {
            const Vector part = read((const storage*)(b + place.from), place.left, whole);
            turn.met_ns = exchange_pushed(turn.peers, part, out, turn.generation);
            out.end();
        }
    } else {
        turn.meet_all();
        for (i64 i = first; i < all; i += step) {
            const Place place(p, vectors, i);
            Out out(p, c, place, whole);
            exchange_read(turn.peers, b + place.from, place.left, whole, out);
            out.end();
        }
    }
    turn.end(!GATHERS);
}

extern "C" __global__ void ALL_REDUCE(char* a, char* b, char* c, i64 request, const AllReduce p) { exchange<false>(b, c, p); }

extern "C" __global__ void ALL_GATHER(char* a, char* b, char* c, i64 request, const AllReduce p) { exchange<true>(b, c, p); }

struct Sum {
    float values[WIDTH];
    __device__ void take(int, const Vector& part) {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) values[i] += widen(part.parts[i]);
    }
};

// Rows of a command's operands, of column `j` of all commands.
struct Rows {
    const storage *a, *b;
    storage *c, *normed;
    __device__ Rows(const char* a_, const char* b_, char* c_, const ReduceAdd& p, i64 j) {
        const i64 command = j / p.n, column = j % p.n;
        a = (const storage*)(a_ + command * p.stride_a) + column * p.lda;
        b = (const storage*)(b_ + command * p.stride_b) + column * p.ldb;
        c = (storage*)(c_ + command * p.stride_c) + column * p.ldc;
        normed = (storage*)(c_ + command * p.stride_c + p.to_norm) + column * p.ldn;
    }
};

// A block has whole columns. It loads what no other rank gives, the residual A and the norm's `gain`, before it waits. C is
// rounded before it is normed, so that both outputs fit together.
template <bool NORMS>
__device__ void reduce_add(const char* a, const char* b, char* c, const storage* gain, const ReduceAdd& p) {
    __shared__ float shared[33];
    const i64 vectors = (p.m + WIDTH - 1) / WIDTH, columns = p.commands * p.n;
    const bool whole = aligned(a, p.lda) && aligned(b, p.ldb) && aligned(c, p.ldc) && aligned(gain, p.ldn) &&
                       aligned((void*)(p.stride_a | p.stride_b | p.stride_c | p.to_norm));
    float scale[WIDTH], first[WIDTH], y[WIDTH];
    const i64 at = (i64)threadIdx.x * WIDTH;
#if PDL
    let_next_begin();
#endif
    if (NORMS) load(scale, gain + at, p.m - at, whole);
#if PDL
    wait_for_earlier();
#endif
    Exchange turn(p.peers);
    const bool pushes = vectors <= blockDim.x && columns <= gridDim.x && gridDim.x <= PUSH_BLOCKS;
    if (!pushes) turn.meet_all();
    for (i64 j = blockIdx.x; j < columns; j += gridDim.x) {
        const Rows rows(a, b, c, p, j);
        float squares = 0.0f;
        for (i64 i = at; i < p.m; i += (i64)blockDim.x * WIDTH) {
            Sum sum = {};
            load(y, rows.a + i, p.m - i, whole);
            if (pushes) {
                const Vector part = read(rows.b + i, p.m - i, whole);
                turn.met_ns = exchange_pushed(turn.peers, part, sum, turn.generation);
            } else {
                exchange_read(turn.peers, rows.b + i, p.m - i, whole, sum);
            }
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) {
                y[e] = widen(narrow(y[e] + sum.values[e]));
                squares += y[e] * y[e];
                if (i == at) first[e] = y[e];
            }
            store(rows.c + i, y, p.m - i, whole);
        }
        if (!NORMS) continue;
        squares = combined(squares, shared, [](float x, float y) { return x + y; });
        const float factor = 1.0f / sqrtf(squares / (float)p.m + NORM_EPSILON);
        for (i64 i = at; i < p.m; i += (i64)blockDim.x * WIDTH) {
            float gains[WIDTH];
            if (i == at) {
#pragma unroll
                for (int e = 0; e < WIDTH; ++e) y[e] = first[e], gains[e] = scale[e];
            } else {
                load(y, rows.c + i, p.m - i, whole), load(gains, gain + i, p.m - i, whole);
            }
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) y[e] = y[e] * factor * gains[e];
            store(rows.normed + i, y, p.m - i, whole);
        }
    }
    turn.end(true);
}

extern "C" __global__ void REDUCE_ADD(char* a, char* b, char* c, i64 request, const ReduceAdd p) {
    reduce_add<false>(a, b, c, 0, p);
}

extern "C" __global__ void REDUCE_ADD_NORM(char* a, char* b, char* c, char* gain, const ReduceAdd p) {
    reduce_add<true>(a, b, c, (const storage*)gain, p);
}
