// The two blocks of a cluster, where they share the tiles of a GEMM of several columns (-DPAIRS=1): each multiplies half of k,
// so that it needs half of the inputs, which every multiprocessor has to fetch. Of each tile the first one stores the first
// half of the rows; what the second one has of these is sent there, past memory and the L2 cache; and the other way round.
//
// There are two buffers, for every other pass. One is filled again when its reader has sent what it has of the pass between,
// for which the filler has waited.
enum { OWN_ROWS = PASS_ROWS / 2, OWN_OF_TILE = TILE_ROWS / 2 };
#if PAIRS
__shared__ float from_peer[2][COLUMNS][OWN_ROWS];
__shared__ u64 of_peer[2];  // barriers, of each buffer

struct Peer {
    u32 rank, turn;  // in the cluster; passes that are over

    __device__ Peer() : rank(blockIdx.x % 2), turn(0) {}
    static __device__ void begin() {
        if (threadIdx.x < 2) barrier_begin(shared_address(of_peer + threadIdx.x), 1);
    }
    // Whether the other one stores a row of a pass; and which of these, or of the own ones, it is.
    __device__ bool has(int row) const { return row / OWN_OF_TILE % 2 != rank; }
    static __device__ int half_of(int row) { return row / TILE_ROWS * OWN_OF_TILE + row % OWN_OF_TILE; }

    __device__ void send(int row, int column, const float2& sum) const {
        const u64 both = (u64)__float_as_uint(sum.y) << 32 | __float_as_uint(sum.x);
        const u32 to = at_peer(shared_address(&from_peer[turn % 2][column][half_of(row)]));
        send_to_peer(to, both, at_peer(shared_address(of_peer + turn % 2)));
    }
    // By all threads: until what the other has of the own rows of so many tiles is here.
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
