// Who tells of small commands (persistent/small_commands.cuh): another warp of the group, the teller. To know that what was
// stored is in memory takes a trip to the host's and back, and before that the next poll has to leave.
//
// It goes by turns. In each the warp that computes gives one command, of which the teller tells; or none, and the teller goes
// back to the group. A turn begins when the one before it has ended.
enum { TELLER = 1 };  // the warp

struct Telling {
    enum { NONE = 0 };
    u64 given, told;  // mbarriers: a phase a turn
    u64 next;         // the command's index + 1, or NONE
    u32 turn;         // of who gives
};
__shared__ Telling telling;

__device__ inline void begin_telling() {
    telling.turn = 0;
    barrier_begin(shared_address(&telling.given), 1), barrier_begin(shared_address(&telling.told), 1);
}

// By one thread, when those have met who have stored.
__device__ inline void give_to_teller(u64 next) {
    barrier_wait(shared_address(&telling.told), ~telling.turn++ & 1);  // of the turn before; the first one need not wait
    telling.next = next;
    barrier_arrive(shared_address(&telling.given));
}

// By one thread of the teller, until nothing is given. `turn` comes next; returns which does then.
__device__ inline u32 tell(u32 turn) {
    for (u64 next = ~0ull; next != Telling::NONE; ++turn) {
        barrier_wait(shared_address(&telling.given), turn & 1);
        next = telling.next;
        if (next != Telling::NONE) complete((u32)next - 1, 1);
        barrier_arrive(shared_address(&telling.told));
    }
    return turn;
}
