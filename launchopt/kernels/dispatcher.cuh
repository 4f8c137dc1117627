// The dispatcher (persistent.cu): takes commands from the host's ring, and hands them out to workers as tiles. It is the first
// warp of a group; a small command that comes alone is done by that group: to hand it out would take longer.
enum { AT_ONCE = 8, DEEP = 128 };  // commands of a poll, and of one while many come
enum { LOOKS = 4, FEW = 5, MOST_TILES = 512 };
enum { ANSWER_CYCLES = 200 };  // that the next poll leaves later after a completion, beside what passes anyway: see `run`

struct __align__(128) Desk {
    u64 staged[DEEP][COMMAND_WORDS];  // as they lie in the ring
    u64 copied;                       // mbarrier of the copy
    u64 next, tile, oldest;           // commands and tiles so far, in all; the first not known to be complete
    u32 copies;
    u32 first_tile[MOST_CAPACITY];  // of the command in a slot
    Order alone;                    // what the group is to do; shape END: it is over
};

// For as long as a turn of the dispatcher takes: what it changes is in registers then, and on the desk between two.
struct Dispatcher {
    const Queue& q;
    const Shapes& shapes;
    Desk& desk;
    const int lane;
    u64 *const entries, next, tile, oldest;
    const u32 capacity_bits, entry_bits;
    u32 copies;
    __device__ Dispatcher(const Queue& q, const Shapes& shapes, Desk& desk, int lane)
        : q(q), shapes(shapes), desk(desk), lane(lane), entries(q.entries), next(desk.next), tile(desk.tile),
          oldest(desk.oldest), capacity_bits((u32)q.capacity_bits), entry_bits((u32)q.entry_bits), copies(desk.copies) {
        __syncwarp();
    }
    __device__ void leave() const {
        if (lane == 0) desk.next = next, desk.tile = tile, desk.oldest = oldest, desk.copies = copies;
        __syncwarp();
    }

    __device__ u32 slot(u64 index) const { return (u32)index & ((1u << capacity_bits) - 1); }
    __device__ u64 ring_tag(u64 index) const { return (index >> capacity_bits) + 1 & 0xFFFF; }

    // How many commands wait in the ring, up to AT_ONCE or to an END; these are staged.
    __device__ int poll() {
        const int row = lane / COMMAND_WORDS, column = lane % COMMAND_WORDS;
        const u64 word = load_system(q.ring + slot(next + row) * COMMAND_WORDS + column);
        const bool there = word >> TAG_SHIFT == ring_tag(next + row);
        const u32 missing = ~__ballot_sync(0xFFFFFFFFu, there);
        const u32 ends = __ballot_sync(0xFFFFFFFFu, there && column == COMMAND_WORDS - 1 && (word & 0xFFFF) == END);
        desk.staged[row][column] = word;
        __syncwarp();
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
            copy_bulk(shared_address(desk.staged), (u64)(q.ring + at * COMMAND_WORDS), bytes, copied);
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
        const u32 most = (1u << entry_bits) - (u32)q.workers - tiles;
        while (oldest < next && (u32)tile - desk.first_tile[slot(oldest)] > most) {
            bool done[LOOKS];
#pragma unroll
            for (int i = 0; i < LOOKS; ++i) {
                const u64 index = oldest + 32 * i + lane;
                done[i] = index < next && is_done(q, (u32)index);
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
        return min((u32)MOST_TILES, chain ? (u32)q.workers / (2 * chain) : count < FEW ? idle / count : 1);
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

    // Whether the one that is staged is small, has one column, and nothing to wait for: then the group is to do it.
    __device__ bool takes_alone() {
        const u64* staged = desk.staged[0];
        const u32 shape = shape_of(0), wait = before(0);
        if (shape >= NEAR_SHAPES) return false;
        const Shape& s = shapes.near[shape];
        if (s.columns > 1 || s.rows * s.k * (i64)sizeof(storage) > (i64)q.direct_bytes) return false;
        if (wait && !is_done(q, (u32)next - wait)) return false;
        if (lane == 0) {
            desk.alone = {staged[0] & PAYLOAD, staged[1] & PAYLOAD, staged[2] & PAYLOAD, (u32)next, 0, shape, 1, 0, (u32)s.rows};
            desk.first_tile[slot(next)] = (u32)tile;
        }
        ++next;
        return true;
    }

    __device__ void end(u64 state) {
        for (u64 t = lane; t < q.workers; t += 32) {
            const u64 tag = entry_tag(tile + t);
            ulonglong2* to = (ulonglong2*)entry(tile + t);
            store_two(to, tag, tag);
            store_two(to + 1, tag, tag);
            store_two(to + 2, tag, tag | END);
        }
        if (lane == 0) {
            desk.alone.shape = END;
            q.progress[0] = next + 1, q.progress[1] = tile + q.workers;
            const Order o = {0, 0, 0, (u32)next, 0, END, 1, 0, 0};
            if (state == ENDED) complete(q, o);
            else store_relaxed((u64)q.gone, (u64)1);
            store_system(q.control + STATE, state);
        }
    }

    // Nothing has come for `polls` polls: be quiet. Returns how it ends where nobody is there any more.
    __device__ u64 rest(u32 polls, u64 since_ns) const {
        if (polls <= BUSY_POLLS) return RUNNING;
        __nanosleep(polls > QUIET_POLLS ? 10000 : 500);
        if (polls % 64) return RUNNING;
        const bool over = load_system(q.control + ABORT) || global_ns() - since_ns > q.patience_ns;
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
            u64 taken = lane ? 0 : load_relaxed(q.ticket);
            const int found = deep ? poll_deep() : poll();
            if (!found) {
                deep = false;
                if (const u64 state = rest(++polls, since_ns)) return end(state);
                continue;
            }
            if (polls > BUSY_POLLS) since_ns = global_ns();
            polls = 0;
            deep = found >= AT_ONCE;
            taken = __shfl_sync(0xFFFFFFFFu, taken, 0);
            const u32 idle = taken > tile ? (u32)(taken - tile) : 0;
            if (found == 1 && idle && takes_alone()) return leave();
            const bool ends = shape_of(found - 1) == END;
            hand_out_all(found - ends, idle);
            if (ends) return end(ENDED);
        }
    }
};

// By the whole group.
__device__ void dispatch(const Queue& q, const Shapes& shapes, Desk& desk, float (*part)[MOST_COLUMNS]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        desk.next = q.progress[0], desk.tile = q.progress[1], desk.oldest = desk.next, desk.copies = 0;
        barrier_begin(shared_address(&desk.copied), 1);
        barriers_begun();
    }
    for (bool told = false;; told = true) {
        __syncwarp();
        if (warp == 0) Dispatcher(q, shapes, desk, lane).run(told);
        group_barrier(0);
        const Order& o = desk.alone;
        if (o.shape == END) return;
        const Shape& s = shapes.near[o.shape];
        one_column<true>(tile_of(o, s), s, warp, lane, 0, part);
        group_barrier(0);
        if (threadIdx.x == 0) complete(q, o);
    }
}
