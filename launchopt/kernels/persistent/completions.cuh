// The reporter: a second warp of the dispatcher's group. It reports completions of small commands
// (persistent/small_commands.cuh), because a fence that includes the host takes a round trip over the bus. The first warp
// polls the ring during that time.
//
// The two warps exchange commands in numbered turns. In each turn the first warp gives the reporter one command, whose
// completion the reporter reports. If the first warp gives NONE, the reporter goes back to the group. The first warp begins a
// turn once the reporter has ended the previous turn.
enum { REPORTER = 1 };  // index of the reporter in its group

struct Reporting {
    enum { NONE = 0 };
    u64 given, reported;  // mbarriers: a command is given; the command's completion is reported. Each has one phase per turn.
    u64 next;  // index + 1 of the command that is given, or NONE
    u32 turn;  // number of turns that the first warp has begun
};
__shared__ Reporting reporting;

__device__ inline void begin_reporting() {
    reporting.turn = 0;
    barrier_begin(shared_address(&reporting.given), 1), barrier_begin(shared_address(&reporting.reported), 1);
}

// Give the reporter a command: its index + 1, or NONE. One thread calls this, behind a barrier that follows all stores.
__device__ inline void give_to_reporter(u64 next) {
    barrier_wait(shared_address(&reporting.reported), ~reporting.turn++ & 1);  // until the previous turn ends; not in turn 0
    reporting.next = next;
    barrier_arrive(shared_address(&reporting.given));
}

// Report completions until NONE is given. One thread of the reporter calls this. turn: number of the first turn. Return the
// number of the turn behind the last one.
__device__ inline u32 report(u32 turn) {
    for (u64 next = ~0ull; next != Reporting::NONE; ++turn) {
        barrier_wait(shared_address(&reporting.given), turn & 1);
        next = reporting.next;
        if (next != Reporting::NONE) complete((u32)next - 1, 1);
        barrier_arrive(shared_address(&reporting.reported));
    }
    return turn;
}
