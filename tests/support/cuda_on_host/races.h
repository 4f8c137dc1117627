// Finds races between the threads of a launch, by PTX's memory model: two accesses to the same memory without an order between
// them, at least one of which is a store, and at least one of which is a plain access or a copy. It keeps vector clocks
// (FastTrack, Flanagan and Freund, PLDI 2009). It therefore finds a race whenever both accesses happen, however far apart.
//
// Input: the calls that the compiler adds for each plain load and store (-fsanitize=thread), the operations of ptx.cpp, and the
// threads that meet at barriers (fibers.cpp). Output: a fault of the launch. It names places in the kernel's text as {pc:...},
// which __init__.py replaces by source lines.
//
// Three things make an order:
// - A barrier, including __syncwarp, but not a shuffle.
// - A store with release, or a relaxed one behind a fence, which a load with acquire, or a relaxed one before a fence, reads.
// - An mbarrier, for the threads that wait for it. They see what arriving threads did, copies, and what issuers of copies did.
// A copy, or a word sent to another block, may arrive at any time after its instruction.
//
// Not covered: a missing fence.proxy between proxies; blocks that do not run together; accesses of the host.
#pragma once
#include "fibers.h"

namespace races {
enum class Order { relaxed, acquire, release };
extern bool on;  // whether the kernel was built to report races

void begin();  // begins a launch of host::grid
void end();
void meet(const std::vector<u32>& fibers);
void meet(const host::Block& one, const host::Block& other);
void fence();
void read(const void* at, size_t bytes, const char* from);  // from: the return address of the access
void write(const void* at, size_t bytes, const char* from);
void load(const void* at, size_t bytes, Order order, const char* from);
void store(const void* at, size_t bytes, Order order, const char* from);
void exchange(const void* at, size_t bytes, const char* from);
void begin(host::Barrier& barrier);
void arrive(host::Barrier& barrier, const char* from);
void pass(const host::Barrier& barrier, const char* from);
void end_phase(host::Barrier& barrier);
void copy(const host::Block& to, host::Barrier& barrier, host::Copy& copy, const char* from);
void land(host::Barrier& barrier, const host::Copy& copy);
}  // namespace races
