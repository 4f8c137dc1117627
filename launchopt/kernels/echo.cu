// Measure the shortest round trip of a command. A warp polls the ring for the words of a command, as persistent.cu does, and
// reports the command as complete. It multiplies nothing. It needs no fence, since it stores no outputs. The ring and the word
// END are those of persistent.cu.
#include "common/storage.cuh"
#include "common/ptx.cuh"
#include "common/skinny.cuh"
#include "persistent/queue.cuh"
#include "persistent/lone_commands.cuh"
#include "persistent/dispatcher_state.cuh"

// Wait until all words of command `next` are in the ring. Return false if the host has set ABORT or if no command comes within
// `patience_ns`. polls: set to the number of polls that found nothing. last: set to the command's last word.
__device__ inline bool find(u64 next, int lane, u32& polls, u64& last) {
    const u64 *const from = queue.ring + slot_of((u32)next) * COMMAND_WORDS + (lane & 1) * 2, tag = ring_tag_of(next);
    const u64 since_ns = global_ns();
    u64 first = 0, second = 0;
    for (polls = 0;; ++polls) {
        load_two_system(from, first, second);
        if (__all_sync(0xFFFFFFFFu, first >> TAG_SHIFT == tag && second >> TAG_SHIFT == tag)) break;
        if (polls % BUSY_POLLS < BUSY_POLLS - 1) continue;
        const bool over = load_system(queue.control + ABORT) || global_ns() - since_ns > queue.patience_ns;
        if (__any_sync(0xFFFFFFFFu, over)) return false;
    }
    last = __shfl_sync(0xFFFFFFFFu, second, 1);
    return true;
}

// Report the end of the kernel. One thread calls this.
__device__ inline void end(u64 next, u64 state) {
    queue.progress[0] = next + 1;
    store_system(queue.control + STATE, state);
}

extern "C" __global__ void __launch_bounds__(32 * GROUP_WARPS * GROUPS, 1) echo(const Queue* far) {
    const int lane = threadIdx.x;
    if (blockIdx.x > 0 || lane >= 32) return;
    if (lane == 0) queue = *far, desk.next = queue.progress[0], desk.answer_cycles = ANSWER_CYCLES;
    __syncwarp();
    for (u64 next = desk.next, last = 0;; ++next) {
        u32 polls = 0;
        const bool found = find(next, lane, polls, last);
        if (found && lane == 0) store_system(queue.host_done + slot_of((u32)next), next + 1);
        if (!found || (last & 0xFFFF) == END) {
            if (lane == 0) end(next, found ? ENDED : GAVE_UP);
            return;
        }
        learn_answer(polls, lane);
        await_answer();
    }
}
