// Where things lie: buffers, each alone in a gigabyte of nothing, and the block's shared arrays.
#pragma once
#include "findings.h"

namespace {
char* Worker::allot(const char* name, const void* declaration, size_t bytes,
                    const unsigned* shape) {
    char* base = shared + shared_used;
    shared_used += (bytes + kRedZone + 127) / 128 * 128;
    if (shared_used > kSharedSpan) fault("shared memory", 0, "%s needs %zu bytes", name, bytes);
    std::memset(base, 0xff, bytes + kRedZone);  // NaN to floats
    arrays.push_back({name, declaration, bytes, base, shape});
    return base;
}

// The buffer that an address is in, or not far from.
const Buffer* buffer_near(uintptr_t address) {
    for (auto& b : g_buffers)
        if (address > b.base - kGap / 2 && address < b.base + b.bytes + kGap / 2) return &b;
    return nullptr;
}

// What conv2d puts on another stream than the one it is given, nothing orders with its caller's
// work. (Streams of its own may be joined by events.)
void on_stream(cudaStream_t stream, uintptr_t pc) {
    if (g_stream && !stream)
        report(false, "wrong stream", pc, {}, "this is on the default stream; conv2d was given "
               "another (its last argument), and on a GPU nothing orders the two");
}

// While the host's code runs, the device's pages are nobody's: it crashes there, as on a GPU. While
// there is an Opened, kernels, libraries and copies can touch them.
void protect(const Buffer& b, int how) {
    uintptr_t first = b.base / kPage * kPage;
    if (b.use != kHosts) mprotect(reinterpret_cast<void*>(first), b.base + b.bytes - first, how);
}
void host_runs(bool runs, int more = 0) {
    g_host = runs;
    for (auto& b : g_buffers)
        protect(b, runs ? PROT_NONE : PROT_READ | (b.writable() ? PROT_WRITE : more));
}
struct Opened {
    const bool before = g_host;
    explicit Opened(int more = 0) { if (before) host_runs(false, more); }
    ~Opened() { if (before) host_runs(true); }
};

// The shared array that an address is in, or behind; or the first.
const Array* Worker::array_near(uintptr_t address) const {
    const Array* near = nullptr;
    for (auto& a : arrays)
        if (!near || address >= uintptr_t(a.base)) near = &a;
    return near;
}

// Bytes of an element, and extents: ":4,8,33"; nothing where they are not known.
std::string shape_of(const unsigned* shape) {
    std::string all = shape ? ":" + std::to_string(*shape) : "";
    while (shape && *++shape) all += "," + std::to_string(*shape);
    return all;
}

// An address as its array, byte and shape: the host process turns that into indices, s_tile[0][18].
std::string place_of(uintptr_t address) {
    const Buffer* b = buffer_near(address);
    if (!b) return "an unknown address";
    return text("\x01%s:%ld%s\x02", b->name, address - b->base, shape_of(b->shape));
}
std::string Worker::place(uintptr_t address) const {
    if (in_buffers(address)) return place_of(address);
    const Array* a = array_near(address);
    if (!a) return "shared memory";
    long byte = long(address - uintptr_t(a->base));
    if (!a->shape) return text("byte %ld of %s", byte, a->name);
    return text("\x01%s:%ld%s\x02", a->name, byte, shape_of(a->shape));
}

// Whether arrays of such extents, ",8,33", are watched: 0: none, 1: one, 2: as rows of one.
int Worker::watched(const std::string& extents) const {
    int found = 0;
    auto compare = [&](const unsigned* shape) {
        std::string whole = shape_of(shape);
        size_t at = whole.rfind(extents);
        if (at != std::string::npos && at + extents.size() == whole.size())
            found = std::max(found, at == whole.find(',') ? 1 : 2);
    };
    for (auto& a : arrays) compare(a.shape);
    for (auto& b : g_buffers) compare(b.shape);
    return found;
}
}  // namespace

extern "C" void* sim_shared(const char* name, const void* declaration, size_t bytes,
                            const unsigned* shape) {
    Worker& w = *t_worker;
    Launch& launch = *w.launch;
    size_t fixed = bytes;
    for (auto& a : w.arrays) {
        if (a.declaration == declaration) return a.base;
        if (a.base != w.dynamic) fixed += a.bytes;
    }
    if (fixed > kSharedDefault)
        fault("shared memory", 0, "static __shared__ arrays take %zu bytes, over the limit of %d; "
              "use dynamic shared memory and cudaFuncSetAttribute", fixed, kSharedDefault);
    if (fixed + launch.shared_bytes > size_t(launch.shared_limit))
        fault("shared memory", 0, "static __shared__ arrays of %zu bytes and %zu dynamic ones are "
              "over the limit of %d; ask for more with cudaFuncSetAttribute", fixed,
              launch.shared_bytes, launch.shared_limit);
    for (size_t seen = launch.static_bytes;
         seen < fixed && !launch.static_bytes.compare_exchange_weak(seen, fixed);) {}
    return w.allot(name, declaration, bytes, shape);
}
