// The two blocks of a cluster share the tiles of some GEMMs of several columns (-DPAIRS=1). Each block multiplies half of k, so
// it needs half of the inputs. Of each tile the first block stores the first half of the rows, the second block the other half.
// A block sends its sums of the other block's rows straight into that block's shared memory.
//
// There are two buffers, which passes use in turn. A block fills a buffer again only after it has received the other block's
// sums of the pass between. The other block sends those after it has read the buffer.
enum { OWN_ROWS = PASS_ROWS / 2, OWN_OF_TILE = TILE_ROWS / 2 };
#if PAIRS
__shared__ float from_peer[2][COLUMNS][OWN_ROWS];
__shared__ u64 of_peer[2];  // barriers, one of each buffer

struct Peer {
    u32 rank, turn;  // place in the cluster; number of passes that are over

    __device__ Peer() : rank(blockIdx.x % 2), turn(0) {}
    static __device__ void begin() {
        if (threadIdx.x < 2) barrier_begin(shared_address(of_peer + threadIdx.x), 1);
    }
    // has: return whether the other block stores a row of a pass. half_of: return the row's place among those of its block.
    __device__ bool has(int row) const { return row / OWN_OF_TILE % 2 != rank; }
    static __device__ int half_of(int row) { return row / TILE_ROWS * OWN_OF_TILE + row % OWN_OF_TILE; }

    __device__ void send(int row, int column, const float2& sum) const {
        const u64 both = (u64)__float_as_uint(sum.y) << 32 | __float_as_uint(sum.x);
        const u32 to = at_peer(shared_address(&from_peer[turn % 2][column][half_of(row)]));
        send_to_peer(to, both, at_peer(shared_address(of_peer + turn % 2)));
    }
    // By all threads: wait for the other block's sums of this block's rows, for `tiles` tiles.
    __device__ void wait(int tiles, int columns) const {
        const u32 barrier = shared_address(of_peer + turn % 2);
        if (threadIdx.x == 0) barrier_expect(barrier, tiles * OWN_OF_TILE * columns * (u32)sizeof(float));
        barrier_wait(barrier, turn / 2 % 2);
    }
    __device__ float2 had(int row, int column) const { return *(const float2*)&from_peer[turn % 2][column][half_of(row)]; }
    __device__ void next() { ++turn; }
};
#else
struct Peer {
    static __device__ void begin() {}
    __device__ bool has(int) const { return false; }
    __device__ void send(int, int, const float2&) const {}
    __device__ void wait(int, int) const {}
    __device__ float2 had(int, int) const { return {0.0f, 0.0f}; }
    __device__ void next() {}
};
#endif
