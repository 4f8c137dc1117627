// The teller: a second warp of the dispatcher's group. It reports completions of small commands
// (persistent/small_commands.cuh), because a fence that includes the host takes a round trip over the bus. The first warp
// polls the ring during that time.
//
// The two warps exchange commands in numbered turns. In each turn the first warp gives the teller one command, and the teller
// reports its completion. If the first warp gives NONE, the teller goes back to the group. The first warp begins a turn once
// the teller has ended the previous turn.
enum { TELLER = 1 };  // index of the teller in its group

struct Telling {
    enum { NONE = 0 };
    u64 given, told;  // mbarriers: a command is given; the command's completion is reported. Each has one phase per turn.
    u64 next;  // index + 1 of the command that is given, or NONE
    u32 turn;  // number of turns that the first warp has begun
};
__shared__ Telling telling;

__device__ inline void begin_telling() {
    telling.turn = 0;
    barrier_begin(shared_address(&telling.given), 1), barrier_begin(shared_address(&telling.told), 1);
}

// Give the teller a command: its index + 1, or NONE. One thread calls this, behind a barrier that follows all stores.
__device__ inline void give_to_teller(u64 next) {
    barrier_wait(shared_address(&telling.told), ~telling.turn++ & 1);  // the previous turn has ended; turn 0 need not wait
    telling.next = next;
    barrier_arrive(shared_address(&telling.given));
}

// Report completions until NONE is given. One thread of the teller calls this. turn: number of the first turn. Return the
// number of the turn behind the last one.
__device__ inline u32 tell(u32 turn) {
    for (u64 next = ~0ull; next != Telling::NONE; ++turn) {
        barrier_wait(shared_address(&telling.given), turn & 1);
        next = telling.next;
        if (next != Telling::NONE) complete((u32)next - 1, 1);
        barrier_arrive(shared_address(&telling.told));
    }
    return turn;
}
