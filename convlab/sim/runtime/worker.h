// A worker: one OS thread with the block that it simulates. Comments name the file of each part.
#pragma once
#include "async_types.h"
#include "types.h"

#include <memory>

namespace {
struct Worker {
    Launch* launch = nullptr;
    int threads = 0, current = -1, live = 0, waiting = 0;
    int votes = 0, last_votes = 0, last_arrived = 0;
    unsigned spins = 0;  // volatile reads and failed compare-and-swaps
    size_t number = 0;   // in Launch::turns
    // Accesses until the next switch. In schedule 0 it is far away.
    int64_t until_switch = 0;
    static constexpr int64_t kNever = int64_t(1) << 62;
    uint64_t random_state = 0;
    void* scheduler = nullptr;  // its stack pointer while fibers run
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<char*> free_stacks, reserved;  // stacks to use again; all of this worker, with their guards
    const bool crowded;  // there are many workers (see new_stack)
    size_t color = 0;    // of the next stack; see kColors
    char* dead_stack = nullptr;  // of the thread that ended last; in use until the next switch
    std::unique_ptr<Access[]> log;  // [thread][kLogPitch]; unused pages take no memory
    int logs = 0;                   // for how many threads the log has room
    // In the current thread's log. Without counts, there is one entry: the last access.
    Access *next_entry = nullptr, *log_end = nullptr, last_access;
    std::vector<Site> sites;
    struct Slot {
        uintptr_t pc;
        uint16_t index;
    };
    std::vector<Slot> site_of;  // a hash table of code addresses
    uintptr_t step_at = 0;             // Fiber::step of the current thread
    const Access* step_log = nullptr;  // next_entry when the thread entered that basic block
    const uintptr_t code = g_code;
    const size_t code_bytes = g_code_bytes;
    uint64_t* steps;  // how often threads entered each basic block; index: code offset / 4
    bool in_collective = false;  // the code of a warp operation runs, not that of a thread
    static constexpr int kMaxDepth = 128;  // most words in one bank: 32 lanes of 16 bytes each
    uint32_t seen_words[32][kMaxDepth];
    std::vector<Array> arrays;
    char* shared = nullptr;
    size_t shared_used = 0;
    char* dynamic = nullptr;
    Counters counters{};
    Cell* shared_cells = nullptr;
    uint64_t* good_loads = nullptr;  // for each word of shared memory; see good_load
    uint32_t owner = 0;  // how many blocks this worker has begun
    uint32_t era = 0;    // how many phases of blocks this worker has begun
    uint64_t block = 0;
    uint32_t phase = 0;
    uint64_t accesses() const { return uint64_t(kNever - until_switch); }  // in schedule 0
    uint64_t words_checked = 0;  // of this block, by operations that are no accesses, such as bulk copies
    uint64_t work() const { return accesses() + words_checked; }
    uint64_t logged = 0;        // entries of all logs that were flushed
    bool is_watched = g_trace;  // are the block's races looked for?
    bool is_counted = g_trace;  // and are its requests and operations counted?
    uintptr_t barrier_at = 0;   // the code address of the barrier that began this phase; 0: none
    bool learned = false;       // a thread of the block saw a release
    Synchronization words;      // of shared memory, and of buffers while blocks run in parallel
    BlockOrder own_order;       // of the block, while blocks run in parallel
    bool abandoned = false;     // a thread of the block ended at an error
    bool replaces = false;      // the current atomic ignores the old value
    std::vector<std::vector<Copy>> copies;  // asynchronous copies of each thread
    // A racing store to a word that another thread stored. After the store, resolve_pending
    // compares the two values.
    struct Pending {
        uint8_t *address = nullptr, before[16];
        unsigned bytes;
        uintptr_t pc;
        Other other;
        std::string what, why;
    } pending;
    struct Seen {  // for each sector, the block that accessed it last; unused pages take no memory
        uint32_t* owner = nullptr;
        size_t size = 0;
        void resize(size_t n) { owner = static_cast<uint32_t*>(calloc(size = n, sizeof *owner)); }
    };
    std::vector<Seen> block_seen;  // for each buffer
    struct Stored {  // for each sector: the block that stored to it last, and the parts that it stored
        Seen by;
        uint16_t* parts = nullptr;  // a bit for each 2 bytes
    };
    std::vector<Stored> block_stored;  // for each buffer
    struct StoredSector {
        uint16_t buffer, site;
        size_t at;
    };
    std::vector<StoredSector> stored_sectors;  // of this block
    struct Reach {
        uint64_t low = ~uint64_t(0), high = 0, sectors = 0;
    };
    std::vector<Reach> reach;      // what the block accessed of each buffer; see report_reach
    Async async;                   // the block's mbarriers, bulk copies and wgmmas
    std::unique_ptr<Operands> operands{new Operands};
    bool recorded = false;         // the requests of the warp whose log is read are recorded
    int recorded_warp = 0;         // the number of that warp

    static constexpr size_t kSites = 1 << 13;

    Access* row_of(int thread) const { return &log[size_t(thread) * kLogPitch]; }
    uint64_t& good_load_of(uintptr_t at) { return good_loads[(at - uintptr_t(shared)) / 4]; }
    // Called at each change of a word's writer in shared memory: earlier checks of loads do not hold any more.
    void forget_loads(uintptr_t at) {
        good_load_of(at) = 0;
        if (!async.operand_of.empty()) async.operand_of[(at - uintptr_t(shared)) / kQuad] = 0;
    }
    Cell& cell_of(uintptr_t at) { return shared_cells[(at - uintptr_t(shared)) / 4]; }

    // memory.h
    char* allocate_shared(const char* name, const void* declaration, size_t bytes,
                          const unsigned* shape);
    const Array* array_near(uintptr_t address) const;
    std::string place(uintptr_t address) const;
    int watched(const std::string& extents) const;

    // fibers.h
    int draw();
    int stacks_at_once() const { return crowded ? 32 : 1; }
    char* new_stack();
    void return_stacks();
    void release_stack(char* stack, bool in_use);
    void enter(int next, void** save);
    void find_log(int i);
    void save_log(int i);
    bool can_run(int i) const;
    void yield();
    void spin(uintptr_t at);
    void count_poll(uintptr_t at);
    void ends(int thread);
    [[noreturn]] void leave(bool at_fault);
    void run_block(uint64_t number);

    // barriers.h
    void wait_as(State state, uintptr_t pc);
    void collective(unsigned mask, void (*step)(void**, unsigned), void* argument, uintptr_t pc);
    bool release();
    int lanes_of(int w) const;
    unsigned lanes_present(int w) const;
    void leave_after(unsigned missing);
    bool release_warp(int w);
    void complete(int w, size_t g);
    void order(int w, unsigned mask);
    void compare_barriers();
    bool complete_activemask(int w);
    bool in_part() const;
    bool is_watched_enough() const;
    void watch_no_more();
    void deadlock(int from);
    std::string describe_mbarrier(int thread) const;

    // access.h
    void step(uintptr_t pc);
    [[gnu::noinline]] void log_backward_jump(uintptr_t pc);
    [[gnu::noinline]] void log_control_flow(uintptr_t what);
    void function_entry(uintptr_t from);
    void function_exit();
    static size_t first_slot(uintptr_t pc);
    Site& site(uintptr_t pc, unsigned bytes, Kind kind, uint16_t& index, unsigned how = 0);
    [[gnu::noinline]] Site& new_site(size_t h, uintptr_t pc, unsigned bytes, Kind kind,
                                     uint16_t& index, unsigned how);
    void access(uintptr_t address, unsigned bytes, Kind kind, uintptr_t pc, bool aligned = true,
                unsigned how = 0);
    void log_access(uintptr_t address, uint16_t index);
    [[gnu::noinline]] void access_slow_path(uintptr_t address, unsigned bytes, Kind kind,
                                              uintptr_t pc, bool aligned, unsigned how);
    bool is_good_load(uintptr_t address, unsigned bytes) const;
    [[gnu::noinline]] void locate(Site& s, uintptr_t address, unsigned bytes, bool global);
    [[noreturn]] void invalid_address(uintptr_t address, unsigned bytes, Kind kind, uintptr_t pc);

    // shadow.h
    void lets_next_start();
    void waits_for_previous();
    bool may_still_run(uint16_t number) const;
    Mark mark(unsigned mask, bool sync, uint16_t index) const;
    bool is_ordered_before(const Mark& m, bool global, const CheckedAccess* checked = nullptr);
    bool are_compatible(const Mark& m, const CheckedAccess& checked) const;
    void note_block(Cell& cell, Kind kind) const;
    const char* describe_iterations(const Mark& m, const CheckedAccess& checked) const;
    void check_access(Cell* cell, const CheckedAccess& checked);
    void check_shared_words(Cell* cell, const CheckedAccess& checked);
    bool follows(const Mark& earlier, const CheckedAccess& checked);
    bool check_word(Cell& cell, const CheckedAccess& checked, uintptr_t address, unsigned mask);
    void report_uninitialised(Cell& cell, const CheckedAccess& checked, uintptr_t address,
                              unsigned mask);
    void report_in_flight(Cell& cell, const CheckedAccess& checked, uintptr_t address);
    void report_race(const Mark& m, const CheckedAccess& checked, uintptr_t address, Kind theirs);
    void resolve_pending();

    // order.h
    static constexpr uint16_t kByAtomic = 0xffff;  // as Fiber::signals_by
    bool synchronizes(Kind kind, unsigned how, uint16_t index);
    bool has_signalled_volatile() const;
    Synchronization& words_of(uintptr_t at);
    BlockOrder& order_of(uint32_t number);
    [[gnu::noinline]] void observe(uintptr_t at, bool of_block, bool by_swap);
    [[gnu::noinline]] void signal(uintptr_t at, bool of_block);
    void fence(bool of_block);
    bool is_released(const Mark& m, const KnownPointer& known);
    [[gnu::noinline]] bool is_ordered_by_fences(const Mark& m, const CheckedAccess* checked);
    std::string why_unordered(const Mark& m);
    void share_knowledge(int first, int count, unsigned mask);

    // reconverge.h
    void flush(int w);
    static void count_call(Fiber& f, Access entry);
    void match(int w, Access* const* rows, int lanes, bool patient = true);

    // notes.h
    bool takes_notes() const;
    void note(const char* operation, uintptr_t pc, const std::string& what);
    void note(const char* operation, uintptr_t pc) {
        if (__builtin_expect(g_record.on, 0)) note(operation, pc, {});
    }
    void note_barrier(const char* operation, uintptr_t address, uintptr_t pc);
    std::string note_place(uintptr_t address) const;
    void record_note(const Site& s, const uint64_t* numbers, int lanes, unsigned mask);

    // requests.h
    void request(Site& s, const uint64_t* addresses, int lanes, unsigned mask);
    [[gnu::noinline]] void record(const Site& s, const uint64_t* addresses, unsigned mask,
                                  bool global);
    void footprint(Site& s, const uint64_t* sectors, int n);
    void count_stored(Site& s, uint64_t address, unsigned bytes);
    void count_partial();
    void report_reach(std::string& to, uint64_t number);

    // async.h
    void check_uncounted(uintptr_t address, unsigned bytes, Kind kind, uintptr_t pc);
    void check_proxy_read(uintptr_t address, unsigned bytes, uintptr_t pc, const char* who);
    void check_operand(uintptr_t core, uintptr_t pc);
    void next_stamp(int thread);
    void publish(Mbarrier& barrier);
    void share_clocks(int w, unsigned mask);
    void reset_clocks();
    Mbarrier& mbarrier_at(uintptr_t address, uintptr_t pc);
    void mbarrier_init(uintptr_t address, int arrivals, uintptr_t pc);
    void mbarrier_arrive(uintptr_t address, int64_t bytes, uintptr_t pc);
    void mbarrier_wait(uintptr_t address, int parity, uintptr_t pc);
    void mbarrier_expect(uintptr_t address, int bytes, uintptr_t pc);
    void mbarrier_drop(uintptr_t address, uintptr_t pc);
    void copy_on_barrier(void* to, const void* from, size_t bytes, uintptr_t address, uintptr_t pc);
    void named_barrier(int id, int count, bool waits, uintptr_t pc);
    void start_clocks();
    void learn_from(const Mbarrier& barrier);

    // meet.h
    void meet(uint64_t which, uint64_t blocks, uintptr_t pc);
    void wait_for_blocks(uint64_t together);
    void complete_if_done(Mbarrier& barrier);
    void bulk_aligned(uintptr_t to, uintptr_t from, int bytes, uintptr_t pc);
    void count_bulk(uintptr_t address, int bytes, Kind kind, uintptr_t pc);
    void bulk_load(char* to, const char* from, int bytes, uintptr_t address, uintptr_t pc);
    void bulk_store(char* to, const char* from, int bytes, uintptr_t pc);
    void bulk_commit(uintptr_t pc);
    void bulk_wait_read(unsigned newest, uintptr_t pc);
    void reads_done(Reads& of, unsigned newest);
    void count_reads(uintptr_t from, uintptr_t to, int change);
    void check_overwrite(const CheckedAccess& checked);
    void warp_collective(void (*step)(void**, unsigned), void* argument, uintptr_t pc);
    bool is_last_of_warp(void* argument, uintptr_t pc);
    void wgmma_done(unsigned newest);
    void warpgroup_step(const WgmmaStep& step);
    void compare_warpgroups();
    void report_unfinished_wgmma();
    void report_unfinished_stores();
    void wgmma_operand(uint64_t descriptor, int first, int rows, char type, float (*to)[16],
                       uintptr_t pc, std::vector<Span>& reading);
    void wgmma(float* d, uint64_t a, uint64_t b, int n, char type, int accumulate, uintptr_t pc,
               const uint32_t* gathered = nullptr);
    void wgmma_fence(uintptr_t pc);
    void wgmma_commit(uintptr_t pc);
    void wgmma_wait(unsigned newest, uintptr_t pc);

    // launch.h
    explicit Worker(size_t number);
    ~Worker();
    void run(Launch* l);
    Counters totals() const;
};
}  // namespace
