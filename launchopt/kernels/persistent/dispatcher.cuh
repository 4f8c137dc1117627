// The dispatcher (persistent.cu) takes commands from the host's ring and hands them out to workers as tiles. It is the first
// warp of a group. Handing out a short command that comes alone would take too long. The dispatcher's group, or the warp
// alone, multiplies such a command.
//
// LOOKS: completions that a lane checks at once. FEW: from this number of commands on, commands are not cut into tiles.
// MOST_TILES: most tiles of a command.
enum { LOOKS = 4, FEW = 5, MOST_TILES = 512 };

// One call of the dispatcher. It holds its state in registers; `keep` stores the state in `desk`.
struct Dispatcher {
    const int lane;
    u64 *const entries, next, tile, oldest;
    const u32 capacity_bits, entry_bits;
    u32 copies;
    __device__ Dispatcher(int lane)
        : lane(lane), entries(queue.entries), next(desk.next), tile(desk.tile), oldest(desk.oldest),
          capacity_bits((u32)queue.capacity_bits), entry_bits((u32)queue.entry_bits), copies(desk.copies) {
        __syncwarp();
    }
    __device__ void keep() const {
        if (lane == 0) desk.next = next, desk.tile = tile, desk.oldest = oldest, desk.copies = copies;
        __syncwarp();
    }

    __device__ u32 slot(u64 index) const { return (u32)index & ((1u << capacity_bits) - 1); }
    __device__ u64 ring_tag(u64 index) const { return (index >> capacity_bits) + 1 & 0xFFFF; }

    // Put one word per lane into `desk.staged`. Return the number of whole commands, up to an END. there: a bit for each lane
    // whose word has the expected tag.
    __device__ int stage(u64 word, u32 there) {
        const int row = lane / COMMAND_WORDS, column = lane % COMMAND_WORDS;
        const u32 ends = there & __ballot_sync(0xFFFFFFFFu, column == COMMAND_WORDS - 1 && (word & 0xFFFF) == END);
        desk.staged[row][column] = word;
        __syncwarp();
        if (there == FIRST) return 1;  // a lone command must not wait for the next ones
        const int found = ~there ? (__ffs(~there) - 1) / COMMAND_WORDS : AT_ONCE;
        return ends ? min(found, __ffs(ends) / COMMAND_WORDS) : found;
    }

    // Copy up to DEEP commands into `desk.staged` by a bulk copy. Return the number of whole commands. Loads would take longer,
    // since each load would fetch one sector. The tags of the copied words show which commands are whole.
    __device__ int poll_deep() {
        const u32 at = slot(next), most = min((u32)DEEP, (1u << capacity_bits) - at), bytes = most * COMMAND_WORDS * 8;
        const u32 copied = shared_address(&desk.copied);
        if (lane == 0) {
            barriers_begun();  // orders the reads of the previous words before the copy overwrites them
            barrier_expect(copied, bytes);
            copy_bulk(shared_address(desk.staged), (u64)(queue.ring + at * COMMAND_WORDS), bytes, copied);
        }
        barrier_wait(copied, copies & 1);
        ++copies;
        int found = 0;
        for (u32 first = 0; first < most; first += 32) {
            const u32 i = first + lane;
            bool whole = i < most;
            for (int word = 0; whole && word < COMMAND_WORDS; ++word)
                whole = desk.staged[i][word] >> TAG_SHIFT == ring_tag(next + i);
            const u32 missing = ~__ballot_sync(0xFFFFFFFFu, whole);
            const u32 ends = __ballot_sync(0xFFFFFFFFu, whole && shape_of(i) == END);
            const int wholes = missing ? __ffs(missing) - 1 : 32;
            found += ends ? min(wholes, __ffs(ends)) : wholes;
            if (missing | ends) break;
        }
        __syncwarp();
        return found;
    }

    __device__ u32 shape_of(int i) const { return (u32)desk.staged[i][3] & 0xFFFF; }
    __device__ u32 before(int i) const { return (u32)((desk.staged[i][3] & PAYLOAD) >> 16); }

    __device__ u64* entry(u64 number) const { return entries + (number & ((1ull << entry_bits) - 1)) * ENTRY_WORDS; }
    __device__ u64 entry_tag(u64 number) const { return ((number >> entry_bits) + 1) << TAG_SHIFT; }

    // Wait until entries are free for `tiles` tiles of `commands` commands, and for an END for each worker. The entries of a
    // command are free once the command is complete. A command is also known to be complete if the host has reused its slot.
    __device__ void await_entries(u32 tiles, u32 commands) {
        oldest = max(oldest + (1u << capacity_bits), next + commands) - (1u << capacity_bits);
        const u32 most = (1u << entry_bits) - (u32)queue.workers - tiles;
        while (oldest < next && (u32)tile - desk.first_tile[slot(oldest)] > most) {
            bool done[LOOKS];
#pragma unroll
            for (int i = 0; i < LOOKS; ++i) {
                const u64 index = oldest + 32 * i + lane;
                done[i] = index < next && is_done((u32)index);
            }
            u32 waiting = 0;
#pragma unroll
            for (int i = 0; i < LOOKS; ++i) {
                if (waiting) continue;
                waiting = ~__ballot_sync(0xFFFFFFFFu, done[i]);
                oldest += waiting ? __ffs(waiting) - 1 : 32;
            }
        }
    }

    // Hand out the staged commands from `first` to `stop` - 1 as one tile each. Each lane writes the entry of one command.
    __device__ void hand_out_whole(int first, int stop) {
        await_entries(stop - first, stop - first);
        for (int i = first + lane; i < stop; i += 32) {
            const u64 number = tile + i - first, index = next + i - first, tag = entry_tag(number);
            const u64* staged = desk.staged[i];
            const u64 last = staged[3] & PAYLOAD;
            desk.first_tile[slot(index)] = (u32)number;
            ulonglong2* to = (ulonglong2*)entry(number);
            store_two(to, tag | staged[0] & PAYLOAD, tag | staged[1] & PAYLOAD);
            store_two(to + 1, tag | staged[2] & PAYLOAD, tag | last >> 16 << 32 | (u32)index);
            store_two(to + 2, tag | (u64)shapes[(u32)last & 0xFFFF].rows << 24, tag | 1 << 16 | last & 0xFFFF);
        }
        tile += stop - first, next += stop - first;
        __syncwarp();
    }

    // Hand out staged command i in up to `most` tiles. Each lane writes the entry of one tile.
    __device__ void hand_out(int i, u32 most) {
        const u64* staged = desk.staged[i];
        const u64 last = staged[3] & PAYLOAD;
        const Shape& s = shapes[(u32)last & 0xFFFF];
        const u32 all = (u32)s.rows, rows = max((u32)s.least_rows, (all + most - 1) / most), tiles = (all + rows - 1) / rows;
        await_entries(tiles, 1);
        if (lane == 0) desk.first_tile[slot(next)] = (u32)tile;
        const u64 a = staged[0] & PAYLOAD, b = staged[1] & PAYLOAD, c = staged[2] & PAYLOAD;
        const u64 order = last >> 16 << 32 | (u32)next, kind = (u64)tiles << 16 | last & 0xFFFF;
        for (u32 t = lane; t < tiles; t += 32) {
            const u64 tag = entry_tag(tile + t);
            ulonglong2* to = (ulonglong2*)entry(tile + t);
            store_two(to, tag | a, tag | b);
            store_two(to + 1, tag | c, tag | order);
            store_two(to + 2, tag | (u64)min(rows, all - t * rows) << 24 | t * rows, tag | kind);
        }
        tile += tiles, ++next;
        __syncwarp();
    }

    // Return into how many tiles staged command i may be cut. A command is cut if there are few commands, or if it waits for
    // another command. Cutting many commands would take longer than it saves.
    __device__ u32 sharers(int i, int count, u32 idle) const {
        const u32 chain = before(i);
        return min((u32)MOST_TILES, chain ? (u32)queue.workers / (2 * chain) : count < FEW ? idle / count : 1);
    }

    // Hand out the first `count` staged commands. idle: number of idle workers.
    __device__ void hand_out_all(int count, u32 idle) {
        int whole = 0;
        for (int first = 0; first < count; first += 32) {
            const u32 own = first + lane < count ? sharers(first + lane, count, idle) : 0;
            for (u32 cut = __ballot_sync(0xFFFFFFFFu, own > 1); cut; cut &= cut - 1) {
                const int at = __ffs(cut) - 1, i = first + at;
                if (whole < i) hand_out_whole(whole, i);
                hand_out(i, __shfl_sync(0xFFFFFFFFu, own, at));
                whole = i + 1;
            }
        }
        if (whole < count) hand_out_whole(whole, count);
    }

    __device__ void end(u64 state) {
        for (u64 t = lane; t < queue.workers; t += 32) {
            const u64 tag = entry_tag(tile + t);
            ulonglong2* to = (ulonglong2*)entry(tile + t);
            store_two(to, tag, tag);
            store_two(to + 1, tag, tag);
            store_two(to + 2, tag, tag | END);
        }
        if (lane == 0) {
            desk.alone.like.vectors = 0;
            queue.progress[0] = next + 1, queue.progress[1] = tile + queue.workers;
            if (state == ENDED) complete((u32)next, 1);
            else store_relaxed((u64)queue.gone, (u64)1);
            store_system(queue.control + STATE, state);
        }
    }

    // Sleep after `polls` polls that found no command. Return GAVE_UP if the host has set ABORT or `patience_ns` is over.
    // Return RUNNING otherwise.
    __device__ u64 rest(u32 polls, u64 since_ns) const {
        if (polls <= BUSY_POLLS) return RUNNING;
        __nanosleep(polls > QUIET_POLLS ? 10000 : 500);
        if (polls % 64) return RUNNING;
        const bool over = load_system(queue.control + ABORT) || global_ns() - since_ns > queue.patience_ns;
        return __any_sync(0xFFFFFFFFu, over) ? GAVE_UP : RUNNING;
    }

    // Hand out commands. Return when a command comes alone that the group can multiply (`desk.alone`), or at the end.
    __device__ void run() {
        u32 polls = 0;
        u64 since_ns = 0, taken = load_relaxed(queue.ticket);
        const u64* from = place_of(next, lane);
        for (;;) {
            const u64 word = load_system(from);
            const u32 there = __ballot_sync(0xFFFFFFFFu, word >> TAG_SHIFT == ring_tag(next + lane / COMMAND_WORDS));
            if ((there & FIRST) != FIRST) {
                taken = load_relaxed(queue.ticket);  // this load ends before the next poll of the ring, so it costs no time
                if (++polls < BUSY_POLLS) continue;
                if (polls == BUSY_POLLS) since_ns = global_ns();
                if (const u64 state = rest(polls, since_ns)) return end(state);
                continue;
            }
            if (there == FIRST) {
                u64 words[COMMAND_WORDS];
#pragma unroll
                for (int i = 0; i < COMMAND_WORDS; ++i) words[i] = __shfl_sync(0xFFFFFFFFu, word, i);
                if (Single single; is_single(words[0], words[1], words[2], words[3], next, next, single)) {
                    learn_answer(polls, lane);
                    if (lane == 0) desk.alone = single, desk.own = next;
                    return;
                }
            }
            for (int found = stage(word, there); found; found = found < AT_ONCE ? 0 : poll_deep()) {
                const u32 idle = taken > tile ? (u32)(taken - tile) : 0;
                const bool ends = shape_of(found - 1) == END;
                hand_out_all(found - ends, idle);
                keep();
                if (ends) return end(ENDED);
                taken = load_relaxed(queue.ticket);
            }
            keep();
            from = place_of(next, lane), polls = 0;
        }
    }
};

// Initialize `desk` and the barriers. The whole group calls this once, before `dispatch`.
__device__ inline void begin_dispatch() {
    if (threadIdx.x <= NEAR_SHAPES) {
        const bool is = threadIdx.x < NEAR_SHAPES && threadIdx.x < queue.shape_count;
        desk.lone[threadIdx.x] = is ? lone_of(shapes.near[threadIdx.x]) : Lone();
    }
    if (threadIdx.x == 0) {
        desk.next = queue.progress[0], desk.tile = queue.progress[1], desk.oldest = desk.next, desk.copies = 0;
        desk.answer_cycles = ANSWER_CYCLES;
        barrier_begin(shared_address(&desk.copied), 1);
        begin_reporting();
        barriers_begun();
    }
    group_barrier(0);
}

// Dispatch commands until END. The whole group calls this. When a small command comes alone, the call returns true to the
// first warp, which calls `serve_small` and then this function again (with again = true). The function is not inlined: the
// kernel would need more registers, and workers would multiply a long sequence of commands 8% slower.
__device__ __noinline__ bool dispatch(int warp, int lane, bool again) {
    u32 turn = 0;
    if (again && lane == 0) give_to_reporter(Reporting::NONE);
    __syncwarp();
    for (;;) {
        if (warp == 0) Dispatcher(lane).run();
        group_barrier(0);
        const Single alone = desk.alone;
        if (!alone.like.vectors) return false;
        if (is_small(alone.like)) {
            group_barrier(0);  // all threads have read `desk.alone`
            if (warp == 0) return true;
            if (warp == REPORTER && lane == 0) turn = report(turn);
            __syncwarp();
            continue;
        }
#if !WITHOUT
        multiply(alone, warp, lane);
#endif
        group_barrier(0);
        if (threadIdx.x == 0) complete((u32)desk.next, 1), pass_single();
        __syncwarp();
        if (warp == 0) await_answer();
    }
}
