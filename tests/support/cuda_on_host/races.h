// What threads of a launch do to the same memory without an order between them, by PTX's memory model: one of them plainly, or
// a copy, and one of them stores. Vector clocks (FastTrack, Flanagan and Freund, PLDI 2009), so that a race is found whenever
// both are done at all, however far apart; not only where it shows.
//
// In: what the compiler has kernels call for each plain load and store (-fsanitize=thread), what ptx.cpp does, and who meets
// (fibers.cpp). Out: the fault of the launch, with places in the kernel's text ({pc:...}, for __init__.py to look up).
//
// An order is made by barriers (__syncwarp, but no shuffle), by what is stored with release, or relaxed behind a fence, and
// loaded with acquire, or relaxed before a fence; and by mbarriers, for those who wait for them: of who arrived, and of copies,
// with what their issuer had done. Copies, and what is sent to another block, may come at any time behind their instruction.
// What it knows nothing of: the difference between proxies, that is whether a fence.proxy is missing; blocks that are not there
// at once; what the host does meanwhile.
#pragma once
#include "fibers.h"

namespace races {
enum class Order { relaxed, acquire, release };
extern bool on;  // whether the kernel was built for it

void begin();  // a launch of host::grid
void end();
void meet(const std::vector<u32>& fibers);
void meet(const host::Block& one, const host::Block& other);
void fence();
void read(const void* at, size_t bytes, const char* from);  // from: the instruction behind
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
