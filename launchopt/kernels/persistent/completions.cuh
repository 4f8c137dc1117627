// The teller: a second warp of the dispatcher's group, which reports completions of small commands
// (persistent/small_commands.cuh). A fence that includes the host takes a round trip over the bus, and the first warp must poll
// meanwhile.
//
// The two warps work in turns. In each turn the first warp gives one command, which the teller completes; or it gives NONE, and
// the teller goes back to the group. A turn begins when the one before it has ended.
enum { TELLER = 1 };  // index of the warp

struct Telling {
    enum { NONE = 0 };
    u64 given, told;  // mbarriers, one phase per turn
    u64 next;  // index + 1 of the command, or NONE
    u32 turn;  // turn of the warp that gives
};
__shared__ Telling telling;

__device__ inline void begin_telling() {
    telling.turn = 0;
    barrier_begin(shared_address(&telling.given), 1), barrier_begin(shared_address(&telling.told), 1);
}

// By one thread, after all threads have stored and met.
__device__ inline void give_to_teller(u64 next) {
    barrier_wait(shared_address(&telling.told), ~telling.turn++ & 1);  // the turn before; the first turn does not wait
    telling.next = next;
    barrier_arrive(shared_address(&telling.given));
}

// Complete commands until NONE is given, by one thread of the teller. turn: the next turn. Return the turn behind the last one.
__device__ inline u32 tell(u32 turn) {
    for (u64 next = ~0ull; next != Telling::NONE; ++turn) {
        barrier_wait(shared_address(&telling.given), turn & 1);
        next = telling.next;
        if (next != Telling::NONE) complete((u32)next - 1, 1);
        barrier_arrive(shared_address(&telling.told));
    }
    return turn;
}
