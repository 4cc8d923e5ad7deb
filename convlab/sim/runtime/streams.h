// The order of work on streams. The runtime performs each launch, copy and fill at its call, but a
// GPU may perform it as late as the next join allows, or as early. So each operation has a vector
// clock: how many operations of each stream are ordered before it. Two operations that nothing
// orders may run in either order, or at the same time. They may not access the same data.
#pragma once
#include "memory.h"

namespace {
using Order = std::vector<uint32_t>;  // for each stream, how many of its operations come before

struct Stream {
    cudaStream_t handle;
    bool blocking;       // it synchronizes with the legacy default stream
    uint32_t issued = 0; // operations so far
    Order before = {};   // what is ordered before the stream's next operation
    uint16_t last = 0;   // the number of its last operation, if that was a launch
};
struct Operation {  // a launch, copy, fill or library call; launch numbers index g_operations
    uint16_t stream = 0;
    bool stray = false;      // it is reported as not ordered after the caller's work
    uint32_t position = 0;   // it is the stream's n-th operation
    uint16_t previous = 0;   // of a dependent launch: the launch before it
    uintptr_t pc = 0;
    dim3 grid, block;
    const char* what = "";
    // Of a launch: has a thread let the next one start, and has one waited for the launch before? Which earlier
    // launches may still run when it begins?
    bool triggered = false, waited = false;
    std::vector<uint16_t> still_runs = {};
};
std::vector<Stream> g_streams{{nullptr, true}};  // the first is the legacy default stream
std::vector<Operation> g_operations(1);
std::vector<Order> g_events(1);  // what was ordered before each event's record; 0: not recorded
Order g_host_waited;             // what the host has waited for
uint32_t g_begun = 0;            // the caller's last operation on conv2d's stream
uint16_t g_other_call = 0;       // launches up to this number are of a call that runs at the same time
bool g_follows = false;          // the next call of conv2d comes directly after the one before
std::vector<uint16_t> g_left;    // operations of this call of conv2d that no join orders yet

uint32_t at(const Order& order, size_t stream) {
    return stream < order.size() ? order[stream] : 0;
}
void join(Order& into, const Order& other) {
    if (into.size() < other.size()) into.resize(other.size());
    for (size_t i = 0; i < other.size(); ++i) into[i] = std::max(into[i], other[i]);
}

size_t stream_of(cudaStream_t handle) {
    auto number = uintptr_t(handle);
    if (number == 1) handle = nullptr;  // cudaStreamLegacy
    for (size_t i = 0; i < g_streams.size(); ++i)
        if (g_streams[i].handle == handle) return i;
    g_streams.push_back({handle, number == 2});  // cudaStreamPerThread is a blocking stream
    return g_streams.size() - 1;
}

// What is ordered before the next operation of a stream.
Order order_of(size_t stream) {
    Order order = g_streams[stream].before;
    join(order, g_host_waited);
    for (size_t i = 0; i < g_streams.size(); ++i)
        if (i != stream && (stream ? !i && g_streams[stream].blocking : g_streams[i].blocking))
            join(order, g_streams[i].before);
    return order;
}

bool is_before(const Operation& operation, const Order& order) {
    return at(order, operation.stream) >= operation.position;
}

// Returns whether all operations so far are in an order.
bool covers_all(const Order& order) {
    for (size_t i = 0; i < g_streams.size(); ++i)
        if (at(order, i) < g_streams[i].issued) return false;
    return true;
}

struct Issued {
    uint16_t number;
    Order before;     // what is ordered before the operation
    bool after_all;   // that is every operation so far
    uint16_t previous; // the previous operation of its stream, if that was a launch
};

// Enters an operation on a stream, with a number for the cells of the data that it accesses. If it
// is not ordered after the work that the caller of conv2d queued on its stream, such as the kernel
// that stores x, that is reported. `watched` is false for a
// copy from or to host memory, for which the host usually waits.
Issued issue(cudaStream_t handle, uintptr_t pc, const char* what, bool watched = true,
             dim3 grid = {}, dim3 block = {}) {
    if (!++g_launch) {
        // A cell could not tell the next launches from the first ones.
        ++g_launch;
        g_unnumbered = g_in_part = true;
        write_report("in part\t0\t1\n");
    }
    size_t stream = stream_of(handle);
    Issued issued{g_launch, order_of(stream), true, g_streams[stream].last};
    issued.after_all = covers_all(issued.before);
    if (g_operations.size() <= g_launch) g_operations.resize(g_launch + 1);
    Operation& o = g_operations[g_launch];
    o = {uint16_t(stream), false, ++g_streams[stream].issued, 0, pc, grid, block, what};
    if (g_stream && watched && at(issued.before, stream_of(g_stream)) < g_begun &&
        stream != stream_of(g_stream)) {
        o.stray = true;
        if (stream)
            report(false, "wrong stream", pc, {}, "this %s is on a stream that does not wait for "
                   "conv2d's last argument: it may run before the caller's earlier work, such as "
                   "the kernel that stores x. Use conv2d's stream, or record an event on it and "
                   "call cudaStreamWaitEvent first", what);
        else
            report(false, "wrong stream", pc, {}, "this %s is on the default stream, but conv2d "
                   "got another stream as its last argument: on a GPU nothing orders the two", what);
    } else if (g_stream) {
        g_left.push_back(g_launch);
    }
    Order& before = g_streams[stream].before = issued.before;
    before.resize(g_streams.size());
    before[stream] = o.position;
    g_streams[stream].last = strcmp(what, "launch") ? 0 : g_launch;
    return issued;
}

void host_waits_for(size_t stream) {
    join(g_host_waited, order_of(stream));
}

// Called when conv2d begins: its stream has work of the caller, which may still run.
void begin_call(cudaStream_t stream) {
    Stream& caller = g_streams[stream_of(stream)];
    ++caller.issued;
    caller.before.resize(g_streams.size());
    caller.before[stream_of(stream)] = caller.issued;
    // Between two calls the caller's stream usually has other work, which ends the launches before it.
    if (!g_follows || !g_operations[caller.last].triggered) caller.last = 0;
    g_follows = false;
    g_begun = caller.issued;
    g_left.clear();
}

// Called when conv2d returns: what follows on its stream must come after all that it launched.
void end_call(cudaStream_t stream) {
    Order order = order_of(stream_of(stream));
    for (uint16_t number : g_left)
        if (const Operation& o = g_operations[number]; !is_before(o, order))
            report(false, "wrong stream", o.pc, {}, "conv2d returned, but its stream does not wait "
                   "for this %s on another stream: work that reads y may run first. Record an "
                   "event after it, and let conv2d's stream wait with cudaStreamWaitEvent", o.what);
    g_left.clear();
}

// Returns the launches before `previous` that may still run when a launch begins that waits for `previous` only. If
// no thread of `previous` waited for the launch before it, it may have ended first.
std::vector<uint16_t> still_running(uint16_t previous) {
    const Operation& last = g_operations[previous];
    std::vector<uint16_t> all = last.still_runs;
    uint16_t before = last.previous;
    if (before && !last.waited && g_operations[before].triggered) all.push_back(before);
    return all;
}

// Returns the number of a code address in g_pcs.
uint16_t site_number(uintptr_t pc) {
    std::lock_guard<std::mutex> hold(g_lock);
    auto [known, is_new] = g_site_of.try_emplace(pc, uint16_t(g_pcs.size()));
    if (is_new) g_pcs.push_back(pc);
    return known->second;
}

// Reports data that two unordered operations access; `now` is the later call.
void report_unordered(uintptr_t pc, const char* access, const std::string& what, const Mark& mark,
                      const char* theirs) {
    const Operation& o = g_operations[mark.launch];
    if (o.stray || g_operations[g_launch].stray) return;  // reported at its launch
    Other other{g_pcs[mark.site], Launch::index(mark.block, o.grid),
                Launch::index(mark.thread, o.block)};
    report(true, "race", pc, other, "%s %s and %s by a %s on another stream, with no event between "
           "the two streams: on a GPU either may come first", access, what, theirs, o.what);
}

// Checks a copy to a __constant__ variable, of which loads are not entered. A copy of the same numbers
// from the host changes nothing, such as of a table at each call.
void enter_constant(const Issued& issued, const void* to, const void* from, size_t bytes,
                    uintptr_t pc) {
    struct Copied { Mark mark; uintptr_t from, to; };
    static std::vector<Copied> all;
    auto at = uintptr_t(to);
    const Buffer* b = buffer_near(at);
    if (!g_trace || !b || b->use != kConstant) return;
    if (!in_buffers(uintptr_t(from)) && !std::memcmp(to, from, bytes)) return;
    Mark mark{};
    mark.launch = issued.number, mark.site = site_number(pc);
    for (const Copied& other : all) {
        if (other.from >= at + bytes || other.to <= at || issued.after_all ||
            is_before(g_operations[other.mark.launch], issued.before))
            continue;
        report_unordered(pc, "store to", place_of(at), other.mark, "a store");
        break;
    }
    all.push_back({mark, at, at + bytes});
}

// Checks a copy, a fill or a library call that loads or stores memory, and enters it in the cells.
void enter_range(const Issued& issued, const void* pointer, size_t bytes, Kind kind, uintptr_t pc) {
    if (!g_trace || g_unnumbered || g_sample || g_record.on) return;
    if (!in_buffers(uintptr_t(pointer)) || !bytes) return;
    const Buffer* b = buffer_near(uintptr_t(pointer));
    if (!b || !b->cells || b->cells == kUncounted || uintptr_t(pointer) < b->base) return;
    Mark mark{};
    mark.launch = issued.number, mark.mask = 15, mark.phase = 1;
    mark.site = site_number(pc);
    size_t first = (uintptr_t(pointer) - b->base) / 4;
    size_t last = std::min((uintptr_t(pointer) + bytes - b->base + 3) / 4, b->bytes / 4 + 1);
    for (size_t i = first; i < last; ++i) {
        Cell& cell = b->cells[i];
        auto meets = [&](const Mark& m, Kind theirs) {
            if (!m.launch || issued.after_all || is_before(g_operations[m.launch], issued.before))
                return;
            report_unordered(pc, access_to(kind), place_of(b->base + 4 * i), m,
                             theirs == Kind::load ? "a load" : "a store");
        };
        meets(cell.writer, Kind::store);
        if (kind == Kind::load) {
            cell.reader[cell.reader[0].launch ? 1 : 0] = mark;
            continue;
        }
        for (const Mark& reader : cell.reader) meets(reader, Kind::load);
        cell.writer = mark, cell.reader[0].launch = cell.reader[1].launch = 0;
    }
}
}  // namespace

extern "C" {
cudaStream_t sim_stream(unsigned flags) {
    auto handle = reinterpret_cast<cudaStream_t>((intptr_t(1) << 41) + 64 * g_streams.size());
    g_streams.push_back({handle, !(flags & 1)});
    return handle;
}
// Records an event: returns its number.
unsigned sim_event_record(cudaStream_t stream) {
    g_events.push_back(order_of(stream_of(stream)));
    return unsigned(g_events.size() - 1);
}
void sim_stream_wait(cudaStream_t stream, unsigned event) {
    join(g_streams[stream_of(stream)].before, g_events[event]);
}
void sim_event_synchronize(unsigned event) { join(g_host_waited, g_events[event]); }
void sim_stream_synchronize(cudaStream_t stream) { host_waits_for(stream_of(stream)); }
void sim_device_synchronize() {
    for (size_t i = 0; i < g_streams.size(); ++i) host_waits_for(i);
}
}
