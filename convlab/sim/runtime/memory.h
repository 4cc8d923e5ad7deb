// Memory: buffers, with a gigabyte of unmapped addresses around each, and shared arrays.
#pragma once
#include "findings.h"

namespace {
char* Worker::allocate_shared(const char* name, const void* declaration, size_t bytes,
                    const unsigned* shape) {
    char* base = shared + shared_used;
    shared_used += (bytes + kRedZone + 127) / 128 * 128;
    if (shared_used > kSharedSpan)
        fault("shared memory", 0, "no room for the %zu bytes of %s", bytes, name);
    std::memset(base, g_fill(), bytes + kRedZone);
    arrays.push_back({name, declaration, bytes, base, shape});
    return base;
}

// Returns the buffer at an address, or the nearest one within half a gigabyte; else null.
const Buffer* buffer_near(uintptr_t address) {
    for (auto& b : g_buffers)
        if (address > b.base - kGap / 2 && address < b.base + b.bytes + kGap / 2) return &b;
    return nullptr;
}

// Protects device memory while host code runs, so that an access crashes there, as on a GPU. While
// an Opened exists, kernels, libraries and copies can access the memory. After very many of them it
// stays open, because each change of the protection takes time.
constexpr int kMostOpened = 200;
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
    ~Opened() {
        static int times = 0;
        if (before && ++times < kMostOpened) host_runs(true);
    }
};

// Returns the last shared array that begins at or before an address; else the first one.
const Array* Worker::array_near(uintptr_t address) const {
    const Array* near = nullptr;
    for (auto& a : arrays)
        if (!near || address >= uintptr_t(a.base)) near = &a;
    return near;
}

// Returns the bytes of an element and the extents as ":4,8,33"; "" if they are not known.
std::string shape_of(const unsigned* shape) {
    std::string all = shape ? ":" + std::to_string(*shape) : "";
    while (shape && *++shape) all += "," + std::to_string(*shape);
    return all;
}

// Returns an address as array, byte and shape. findings.py writes it as indices: s_tile[0][18].
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

// Returns an address outside an array as array, byte, size and shape. findings.py writes it as
// "s_tile[8][0] (element 64); s_tile has 64 elements".
std::string place_outside(const std::string& name, long byte, size_t size, const unsigned* shape) {
    return text("\x03%s:%ld:%zu%s\x02", name, byte, size, shape_of(shape));
}

// Returns whether an array with these extents (",8,33") is checked by its addresses: 0 if none is,
// 1 if a whole array has the extents, 2 if they are a row of an array.
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
        fault("shared memory", 0, "static __shared__ arrays take %zu bytes, more than the limit of "
              "%d bytes: use dynamic shared memory and cudaFuncSetAttribute", fixed,
              kSharedDefault);
    if (fixed + launch.shared_bytes > size_t(launch.shared_limit))
        fault("shared memory", 0, "%zu bytes of static and %zu bytes of dynamic shared memory are "
              "more than the limit of %d bytes%s", fixed, launch.shared_bytes, launch.shared_limit,
              launch.shared_limit < g_device.shared_optin
                  ? ": request more with cudaFuncSetAttribute" : "");
    for (size_t seen = launch.static_bytes;
         seen < fixed && !launch.static_bytes.compare_exchange_weak(seen, fixed);) {}
    return w.allocate_shared(name, declaration, bytes, shape);
}
