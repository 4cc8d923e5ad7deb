// Where things lie: buffers, each alone in a gigabyte of nothing, and the block's shared arrays.
namespace {

char* Worker::allot(const char* name, const void* declaration, size_t bytes, const unsigned* shape) {
    char* base = shared + shared_used;
    shared_used += (bytes + kRedZone + 127) / 128 * 128;
    if (shared_used > kSharedSpan) fault("shared memory", 0, "%s needs %zu bytes", name, bytes);
    std::memset(base, 0xff, bytes + kRedZone);  // NaN to floats
    arrays.push_back({name, declaration, bytes, base, shape});
    return base;
}

void* Worker::array(const char* name, const void* declaration, size_t bytes, const unsigned* shape) {
    size_t fixed = bytes;
    for (auto& a : arrays) {
        if (a.declaration == declaration) return a.base;
        if (a.base != dynamic) fixed += a.bytes;
    }
    if (fixed > kSharedDefault)
        fault("shared memory", 0,
              "static __shared__ arrays take %zu bytes, over the limit of %d; use dynamic "
              "shared memory and cudaFuncSetAttribute",
              fixed, kSharedDefault);
    if (fixed + launch->shared_bytes > size_t(launch->shared_limit))
        fault("shared memory", 0,
              "static __shared__ arrays of %zu bytes and %zu dynamic ones are over the limit "
              "of %d; ask for more with cudaFuncSetAttribute",
              fixed, launch->shared_bytes, launch->shared_limit);
    for (size_t seen = launch->static_bytes;
         seen < fixed && !launch->static_bytes.compare_exchange_weak(seen, fixed);) {}
    return allot(name, declaration, bytes, shape);
}

// An address in words: s_tile[0][18]; of a buffer its name and byte, which the host process
// turns into indices.
std::string Worker::place(uintptr_t address) const {
    char text[160];
    if (address - g_region < kRegion) {
        for (auto& b : g_buffers) {
            if (address < b.base - kGap / 2 || address >= b.base + b.bytes + kGap / 2) continue;
            snprintf(text, sizeof text, "\x01%s:%lld\x02", b.name.c_str(),
                     (long long)(address - b.base));
            return text;
        }
        return "an unknown address";
    }
    const Array* near = nullptr;
    for (auto& a : arrays)
        if (!near || address >= uintptr_t(a.base)) near = &a;
    if (!near) return "shared memory";
    auto byte = (long long)(address - uintptr_t(near->base));
    if (!near->shape) {
        snprintf(text, sizeof text, "byte %lld of %s", byte, near->name);
        return text;
    }
    long long unit = near->shape[0], element = byte < 0 ? -((unit - 1 - byte) / unit) : byte / unit;
    std::string name;
    int rank = 0;
    while (near->shape[1 + rank]) ++rank;
    for (int d = rank - 1; d > 0; --d) {
        long long extent = near->shape[1 + d], i = (element % extent + extent) % extent;
        name = "[" + std::to_string(i) + "]" + name;
        element = (element - i) / extent;
    }
    if (rank) name = "[" + std::to_string(element) + "]" + name;
    return near->name + name;
}

}  // namespace

extern "C" {
// Maps a buffer with unmapped memory on both sides; fd < 0: private memory, poisoned (all ones).
// `writable` is 2 where what it holds may be read before it is written.
void* sim_map(const char* name, int fd, size_t offset, size_t bytes, int writable) {
    size_t pages = (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
    if (g_region_used + pages + kGap > kRegion) return nullptr;
    void* at = reinterpret_cast<void*>(g_region + g_region_used);
    g_region_used += (pages + kGap + kPage - 1) / kPage * kPage;
    int flags = MAP_FIXED | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED);
    int protection = PROT_READ | (writable ? PROT_WRITE : 0);
    if (mmap(at, pages, protection, flags, fd, off_t(offset)) == MAP_FAILED) return nullptr;
    if (fd < 0 && !g_sample && !g_record.on) std::memset(at, 0xff, bytes);
    std::lock_guard<std::mutex> hold(g_lock);
    Cell* cells = nullptr;
    size_t need = (bytes / 4 + 1) * sizeof(Cell);
    auto map = [](size_t size) {
        void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        return p == MAP_FAILED ? nullptr : p;
    };
    if (writable && g_trace && g_shadow_used + need <= kShadow) {
        cells = static_cast<Cell*>(map(need));
        g_shadow_used += need;
    }
    auto* seen = static_cast<uint16_t*>(map((bytes / 32 + 2) * 2));
    g_buffers.push_back({name, uintptr_t(at), bytes, bool(writable), !writable || writable == 2,
                         cells, seen, {}});
    return at;
}

// The host has written there, by cudaMemset and the like.
void sim_host_wrote(const void* address, size_t bytes) {
    auto from = uintptr_t(address);
    for (auto& b : g_buffers)
        if (from >= b.base && from < b.base + b.bytes) b.by_host.push_back({from, from + bytes});
}
}
