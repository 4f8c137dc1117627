// The two blocks of a cluster, where they share the tiles of a GEMM of several columns (-DPAIRS=1): each multiplies half of k,
// so that it needs half of the inputs, which every multiprocessor has to fetch. Of each pass the first one stores the first
// half of the tiles; what the second one has of these is sent there, past memory and the L2 cache; and the other way round.
//
// There are two buffers, for every other pass. One is filled again when its reader has sent what it has of the pass between,
// for which the filler has waited. Where that pass leaves the filler nothing to store, it waits for nobody: then the host sees
// to it that what comes next follows from the reader's results (devices/megakernel_tasks.py, `Splits`).
enum { OWN_ROWS = PASS_ROWS / 2 };  // of a pass, at the most
#if PAIRS
__shared__ float from_peer[2][COLUMNS][OWN_ROWS];
__shared__ u64 of_peer[2];  // barriers, of each buffer

struct Peer {
    u32 rank, turn;  // in the cluster; passes that are over

    __device__ Peer() : rank(blockIdx.x % 2), turn(0) {}
    static __device__ void begin() {
        if (threadIdx.x < 2) barrier_begin(shared_address(of_peer + threadIdx.x), 1);
    }
    // How many tiles of a pass the first one stores: the second one has the others.
    static __device__ int first_half(int tiles, bool in_pairs) { return in_pairs ? min(tiles, 2) : (tiles + 1) / 2; }

    __device__ void send(int row, int column, const float2& sum) const {
        const u64 both = (u64)__float_as_uint(sum.y) << 32 | __float_as_uint(sum.x);
        const u32 to = at_peer(shared_address(&from_peer[turn % 2][column][row]));
        send_to_peer(to, both, at_peer(shared_address(of_peer + turn % 2)));
    }
    // By all threads: until what the other has of `rows` rows is here.
    __device__ void wait(int rows, int columns) const {
        const u32 barrier = shared_address(of_peer + turn % 2);
        if (threadIdx.x == 0) barrier_expect(barrier, rows * columns * (u32)sizeof(float));
        barrier_wait(barrier, turn / 2 % 2);
    }
    __device__ float2 had(int row, int column) const { return *(const float2*)&from_peer[turn % 2][column][row]; }
    __device__ void next() { ++turn; }
};
#else
struct Peer {
    enum { rank = 0 };
    static __device__ void begin() {}
    static __device__ int first_half(int tiles, bool) { return tiles; }
    __device__ void send(int, int, const float2&) const {}
    __device__ void wait(int, int) const {}
    __device__ float2 had(int, int) const { return {0.0f, 0.0f}; }
    __device__ void next() {}
};
#endif
