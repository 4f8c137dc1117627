// Follows a kernel's source: KERNEL_CALL is a statement about `arguments`, what the launch was given.
namespace host {
inline void body() {
    Fiber& own = *grid->now;
    {
        void* arguments = grid->arguments;
        KERNEL_CALL;
    }
    own.state = State::ended;
    --own.block->alive;
    Warp& warp = own.block->warps[own.thread / 32];
    if (--warp.alive && warp.arrived == warp.alive) warp.arrived = 0, wake_warp(own.block, own.thread / 32);
    Named& all = own.block->named[ALL];
    if (own.block->alive && all.arrived == own.block->alive) all.arrived = 0, wake_all(own.block, ALL);
    yield();
}
inline void swap_in(Block* block) {
    if (grid->resident == block) return;
    const size_t bytes = &__stop_shared_memory - &__start_shared_memory;
    if (grid->resident) memcpy(grid->resident->variables.data(), &__start_shared_memory, bytes);
    memcpy(&__start_shared_memory, block->variables.data(), bytes);
    grid->resident = block;
}
inline void land(Block& block) {  // some of the copies that are under way
    for (size_t i = 0; i < block.copies.size();) {
        if (grid->chance() % 3) {
            ++i;
            continue;
        }
        const Copy copy = block.copies[i];
        block.copies.erase(block.copies.begin() + i);
        char* to = copy.to < STATIC ? aligned(block.dynamic) + copy.to : &__start_shared_memory + (copy.to - STATIC);
        memcpy(to, copy.from ? copy.from : (const char*)&copy.word, copy.bytes);
        Barrier& barrier = block.barriers[copy.barrier];
        barrier.bytes -= (long)copy.bytes;
        look(barrier);
    }
}

// Blocks `first` to `first + count` of a grid, all there at once; what went wrong.
inline std::string run(uint3 size, unsigned first, unsigned count, unsigned threads, unsigned dynamic_bytes, u64 seed, void* arguments, u64 most_turns) {
    Grid own;
    grid = &own;
    own.chance.state = seed, own.threads = threads, own.size = size, own.arguments = arguments;
    own.blocks.resize(count), own.fibers.resize(count * threads);
    const size_t bytes = &__stop_shared_memory - &__start_shared_memory;
    static std::vector<std::unique_ptr<char[]>> stacks;
    while (stacks.size() < own.fibers.size()) stacks.emplace_back(new char[STACK_BYTES]);
    for (unsigned b = 0; b < count; ++b) {
        Block& block = own.blocks[b];
        const unsigned at = first + b;
        block.dynamic.assign(dynamic_bytes + ALIGNMENT, (char)0xA5), block.variables.assign(bytes, (char)0xA5);
        block.warps.resize((threads + 31) / 32), block.alive = threads, block.first = b * threads;
        block.index = {at % size.x, at / size.x % size.y, at / size.x / size.y};
        for (unsigned t = 0; t < threads; ++t) {
            Fiber& fiber = own.fibers[b * threads + t];
            ++block.warps[t / 32].alive;
            fiber.block = &block, fiber.thread = t;
            getcontext(&fiber.start);
            fiber.start.uc_stack.ss_sp = stacks[b * threads + t].get(), fiber.start.uc_stack.ss_size = STACK_BYTES;
            makecontext(&fiber.start, body, 0);
        }
    }
    for (u64 turn = 0; own.fault.empty(); ++turn) {
        unsigned alive = 0;
        bool moved = false;
        for (Block& each : own.blocks) alive += each.alive;
        if (!alive) break;
        if (turn >= most_turns) own.fault = "does not end";
        Block& block = own.blocks[own.chance() % count];
        if (!block.alive) continue;
        swap_in(&block);
        land(block);
        const unsigned from = own.chance() % threads;
        for (unsigned i = 0; i < threads && own.fault.empty(); ++i) {
            Fiber& fiber = own.fibers[block.first + (from + i) % threads];
            if (fiber.state != State::runs || own.chance() % 8 == 0) continue;
            moved = true;
            go_on(fiber);
        }
        if (moved || !own.fault.empty()) continue;
        bool any = !block.copies.empty();
        for (unsigned t = 0; t < threads; ++t) any |= own.fibers[block.first + t].state == State::runs;
        if (!any) own.fault = "all threads of a block wait for each other";
    }
    for (Block& block : own.blocks)
        if (own.fault.empty() && !block.copies.empty()) own.fault = "a block ends while copies are under way";
    grid = nullptr;
    return own.fault;
}
}  // namespace host

// 0, or a text of why it did not end. at_once: how many blocks are there together, one after the other the rest.
extern "C" const char* launch(
    const unsigned* size, unsigned at_once, unsigned threads, unsigned dynamic_bytes, u64 seed, void* arguments, u64 most_turns) {
    static std::string fault;
    const unsigned blocks = size[0] * size[1] * size[2];
    fault.clear();
    for (unsigned first = 0; first < blocks && fault.empty(); first += at_once)
        fault = host::run({size[0], size[1], size[2]}, first, std::min(at_once, blocks - first), threads, dynamic_bytes, seed + first, arguments, most_turns);
    return fault.empty() ? nullptr : fault.c_str();
}
