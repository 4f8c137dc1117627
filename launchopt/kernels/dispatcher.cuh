// The dispatcher (persistent.cu): takes commands from the host's ring, and hands them out to workers as tiles. It is the first
// warp of a group; a small command that comes alone is done by that group: to hand it out would take longer.
enum { AT_ONCE = 8, DEEP = 128 };  // commands of a poll, and of one while many come
enum { LOOKS = 4, FEW = 5, MOST_TILES = 512 };
enum { ANSWER_CYCLES = 350 };  // that the next poll leaves later after a completion, beside what passes anyway: see `run`

struct __align__(128) Desk {
    u64 staged[DEEP][COMMAND_WORDS];  // as they lie in the ring
    u64 copied;                       // mbarrier of the copy
    u64 next, tile, oldest;           // commands and tiles so far, in all; the first not known to be complete
    u32 copies;
    u32 first_tile[MOST_CAPACITY];    // of the command in a slot
    Lone lone[NEAR_SHAPES + 1];       // the last one: any other shape
    Lone alone;                       // what the group is to do with the first one staged; no vectors: it is over
};
__shared__ Desk desk;

// For as long as a turn of the dispatcher takes: what it knows is in registers then, what it has handed out on the desk, too.
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

    // How many commands wait in the ring, up to AT_ONCE or to an END; these are staged.
    __device__ int poll() {
        const int row = lane / COMMAND_WORDS, column = lane % COMMAND_WORDS;
        const u64 word = load_system(queue.ring + slot(next + row) * COMMAND_WORDS + column);
        const bool there = word >> TAG_SHIFT == ring_tag(next + row);
        const u32 missing = ~__ballot_sync(0xFFFFFFFFu, there);
        const u32 ends = __ballot_sync(0xFFFFFFFFu, there && column == COMMAND_WORDS - 1 && (word & 0xFFFF) == END);
        desk.staged[row][column] = word;
        __syncwarp();
        if (missing == ~((1u << COMMAND_WORDS) - 1)) return 1;  // a lone one is not to wait for what follows
        const int found = missing ? (__ffs(missing) - 1) / COMMAND_WORDS : AT_ONCE;
        return ends ? min(found, __ffs(ends) / COMMAND_WORDS) : found;
    }

    // The same for up to DEEP, by a bulk copy: loads of so much, a sector each, would take longer. Words are looked at
    // once they are here, and every word tells whether it was there.
    __device__ int poll_deep() {
        const u32 at = slot(next), most = min((u32)DEEP, (1u << capacity_bits) - at), bytes = most * COMMAND_WORDS * 8;
        const u32 copied = shared_address(&desk.copied);
        if (lane == 0) {
            barriers_begun();  // what was staged before has been read
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

    // Until `tiles` more fit, and one for each worker's END: entries are free when their command is complete.
    __device__ void make_room(u32 tiles) {
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

    // Those staged from `first` to `stop`, a tile each, a lane each.
    __device__ void hand_out_whole(int first, int stop) {
        make_room(stop - first);
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

    // The one staged at i, in up to `most` tiles, a lane each.
    __device__ void hand_out(int i, u32 most) {
        const u64* staged = desk.staged[i];
        const u64 last = staged[3] & PAYLOAD;
        const Shape& s = shapes[(u32)last & 0xFFFF];
        const u32 all = (u32)s.rows, rows = max((u32)s.least_rows, (all + most - 1) / most), tiles = (all + rows - 1) / rows;
        make_room(tiles);
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

    // How many idle workers may share the command staged at i: few commands, and those that wait for another, are cut;
    // to cut many would take longer than it brings.
    __device__ u32 sharers(int i, int count, u32 idle) const {
        const u32 chain = before(i);
        return min((u32)MOST_TILES, chain ? (u32)queue.workers / (2 * chain) : count < FEW ? idle / count : 1);
    }

    // The first `count` of those staged.
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

    // Whether the group is to do the only one staged: it has nothing to wait for.
    __device__ bool takes_alone() {
        const ulonglong2* staged = (const ulonglong2*)desk.staged[0];
        const ulonglong2 first = staged[0];
        const u64 last = staged[1].y & PAYLOAD;
        const Lone alone = desk.lone[min((u32)last & 0xFFFF, (u32)NEAR_SHAPES)];
        if (!alone.vectors || (u32)(first.x | first.y) & 15) return false;
        const u32 wait = (u32)(last >> 16);
        if (wait && !is_done((u32)next - wait)) return false;
        if (lane == 0) desk.alone = alone;
        return true;
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
            desk.alone.vectors = 0;
            queue.progress[0] = next + 1, queue.progress[1] = tile + queue.workers;
            if (state == ENDED) complete((u32)next, 1);
            else store_relaxed((u64)queue.gone, (u64)1);
            store_system(queue.control + STATE, state);
        }
    }

    // Nothing has come for `polls` polls: be quiet. Returns how it ends where nobody is there any more.
    __device__ u64 rest(u32 polls, u64 since_ns) const {
        if (polls <= BUSY_POLLS) return RUNNING;
        __nanosleep(polls > QUIET_POLLS ? 10000 : 500);
        if (polls % 64) return RUNNING;
        const bool over = load_system(queue.control + ABORT) || global_ns() - since_ns > queue.patience_ns;
        return __any_sync(0xFFFFFFFFu, over) ? GAVE_UP : RUNNING;
    }

    // Until there is something on the desk for the group. told: it has just told the host of a completion. A poll that left
    // at once would be on its way when the host answers, find nothing, and hold up the next one by its own round trip.
    __device__ void run(bool told) {
        for (const i64 since = clock64(); told && clock64() - since < ANSWER_CYCLES;) {}
        bool deep = false;
        u32 polls = 0;
        u64 since_ns = global_ns();
        for (;;) {
            u64 taken = lane ? 0 : load_relaxed(queue.ticket);
            const int found = deep ? poll_deep() : poll();
            if (!found) {
                deep = false;
                if (const u64 state = rest(++polls, since_ns)) return end(state);
                continue;
            }
            if (found == 1 && takes_alone()) return;
            if (polls > BUSY_POLLS) since_ns = global_ns();
            polls = 0;
            deep = found >= AT_ONCE;
            taken = __shfl_sync(0xFFFFFFFFu, taken, 0);
            const u32 idle = taken > tile ? (u32)(taken - tile) : 0;
            const bool ends = shape_of(found - 1) == END;
            hand_out_all(found - ends, idle);
            keep();
            if (ends) return end(ENDED);
        }
    }
};

// By the whole group. Not inlined: then what it has in registers would cost the workers 8% of a stream (RESIDENT.md).
__device__ __noinline__ void dispatch() {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x <= NEAR_SHAPES) {
        const bool is = threadIdx.x < NEAR_SHAPES && threadIdx.x < queue.shape_count;
        desk.lone[threadIdx.x] = is ? lone_of(shapes.near[threadIdx.x]) : Lone();
    }
    if (threadIdx.x == 0) {
        desk.next = queue.progress[0], desk.tile = queue.progress[1], desk.oldest = desk.next, desk.copies = 0;
        barrier_begin(shared_address(&desk.copied), 1);
        barriers_begun();
    }
    group_barrier(0);
    for (bool told = false;; told = true) {
        if (warp == 0) Dispatcher(lane).run(told);
        group_barrier(0);
        const ulonglong2* staged = (const ulonglong2*)desk.staged[0];
        const ulonglong2 first = staged[0];
        const u64 c = staged[1].x & PAYLOAD;
        const Lone alone = desk.alone;
        if (!alone.vectors) return;
#if !WITHOUT
        multiply(alone, first.x & PAYLOAD, first.y & PAYLOAD, c, warp, lane);
#endif
        group_barrier(0);
        if (threadIdx.x == 0) {
            const u32 index = (u32)desk.next;
            complete(index, 1);
            desk.first_tile[slot_of(index)] = (u32)desk.tile;
            ++desk.next;
        }
        __syncwarp();
    }
}
