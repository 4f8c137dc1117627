// Clusters of two blocks (-DPAIRS=1). The two blocks share the tiles of some GEMMs of several columns. Each block multiplies
// half of k, so it needs half of the inputs. The first block stores the first half of each tile's rows; the second block stores
// the other half. A block sends its sums of the other block's rows into that block's shared memory.
//
// There are two buffers, which passes use in turn. Before a block fills a buffer again, it receives the other block's sums of
// the pass in between. The other block has read the buffer before it sends these sums.
enum { OWN_ROWS = PASS_ROWS / 2, OWN_OF_TILE = TILE_ROWS / 2 };  // rows that a block stores of a pass; of a tile
#if PAIRS
__shared__ float from_peer[2][COLUMNS][OWN_ROWS];  // the two buffers: sums from the other block
__shared__ u64 of_peer[2];  // mbarriers, one per buffer

struct Peer {
    u32 rank, turn;  // index of this block in its cluster; number of passes that are complete

    __device__ Peer() : rank(blockIdx.x % 2), turn(0) {}
    static __device__ void begin() {
        if (threadIdx.x < 2) barrier_begin(shared_address(of_peer + threadIdx.x), 1);
    }
    // Return whether the other block of the cluster stores a row of a pass.
    __device__ bool has(int row) const { return row / OWN_OF_TILE % 2 != rank; }
    // Return the index of a row of a pass among the rows that its block stores.
    static __device__ int half_of(int row) { return row / TILE_ROWS * OWN_OF_TILE + row % OWN_OF_TILE; }

    __device__ void send(int row, int column, const float2& sum) const {
        const u64 both = (u64)__float_as_uint(sum.y) << 32 | __float_as_uint(sum.x);
        const u32 to = at_peer(shared_address(&from_peer[turn % 2][column][half_of(row)]));
        send_to_peer(to, both, at_peer(shared_address(of_peer + turn % 2)));
    }
    // Wait for the other block's sums of this block's rows, for `tiles` tiles. All threads call this.
    __device__ void wait(int tiles, int columns) const {
        const u32 barrier = shared_address(of_peer + turn % 2);
        if (threadIdx.x == 0) barrier_expect(barrier, tiles * OWN_OF_TILE * columns * (u32)sizeof(float));
        barrier_wait(barrier, turn / 2 % 2);
    }
    // Return the other block's sums of two rows.
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
