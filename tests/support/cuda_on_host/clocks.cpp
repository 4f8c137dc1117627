// Vector clocks that share equal parts (fibers.h).
#include <algorithm>

#include "fibers.h"

namespace host {
Seen::Part& Seen::own(u32 part) {
    if (parts.size() <= part) parts.resize(part + 1);
    auto& found = parts[part];
    if (!found) found = std::make_shared<Part>();
    if (found.use_count() > 1) found = std::make_shared<Part>(*found);
    return *found;
}
void Seen::raise(u32 thread, u32 clock) {
    if (of(thread) < clock) own(thread / PART).clocks[thread % PART] = clock;
}
void Seen::join(const Seen& other) {
    if (parts.size() < other.parts.size()) parts.resize(other.parts.size());
    for (u32 part = 0; part < other.parts.size(); ++part) {
        const auto& theirs = other.parts[part];
        if (!theirs || parts[part] == theirs) continue;
        bool adds = false, lacks = false;
        for (u32 i = 0; i < PART && parts[part]; ++i) {
            adds |= parts[part]->clocks[i] < theirs->clocks[i];
            lacks |= parts[part]->clocks[i] > theirs->clocks[i];
        }
        if (!lacks && (adds || !parts[part])) parts[part] = theirs;
        if (!adds || !lacks) continue;
        Part& mine = own(part);
        for (u32 i = 0; i < PART; ++i) mine.clocks[i] = std::max(mine.clocks[i], theirs->clocks[i]);
    }
}
}  // namespace host
