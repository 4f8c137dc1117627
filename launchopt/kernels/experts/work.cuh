// Pieces of work of the GEMMs of experts: an expert, and up to PIECE of its columns, which are neighbours. `first` has the
// first column of each expert, and the end of the last one, as EXPERT_MAP leaves them (experts/routing.cuh).

struct Work {
    int expert, column, columns;  // its first column among those of all experts, and their number; 0: no work
    int pieces;                   // of all experts
};

// Return piece `number`. Every lane of the warp counts the pieces of some experts. Numbers beyond the columns come only from
// memory that no command has written, after a fault in the order.
template <int PIECE> __device__ inline Work work_of(const u32* first, u32 number, int experts, u32 all_columns) {
    const int lane = threadIdx.x % 32, each = (experts + 31) / 32;
    const int begin = min(lane * each, experts), end = min(begin + each, experts);
    const auto at = [&](int expert) { return min(first[expert], all_columns); };
    const auto pieces_of = [&](int expert) {
        const u32 from = at(expert), to = at(expert + 1);
        return to > from ? (to - from + PIECE - 1) / PIECE : 0u;
    };
    u32 own = 0;
    for (int i = begin; i < end; ++i) own += pieces_of(i);
    u32 before = own;  // pieces of the lanes up to this one
    for (int step = 1; step < 32; step *= 2) {
        const u32 other = __shfl_sync(0xFFFFFFFFu, before, lane >= step ? lane - step : lane);
        if (lane >= step) before += other;
    }
    const int pieces = (int)__shfl_sync(0xFFFFFFFFu, before, 31);
    before -= own;
    const u32 owner = __ballot_sync(0xFFFFFFFFu, before <= number && number < before + own);
    if (!owner) return {0, 0, 0, pieces};
    int expert = begin;
    u32 left = number - before;
    if (owner >> lane & 1)
        for (u32 count; left >= (count = pieces_of(expert)); ++expert) left -= count;
    const int source = __ffs(owner) - 1;
    expert = __shfl_sync(0xFFFFFFFFu, expert, source);
    const u32 column = at(expert) + PIECE * __shfl_sync(0xFFFFFFFFu, left, source);
    return {expert, (int)column, (int)min((u32)PIECE, at(expert + 1) - column), pieces};
}
