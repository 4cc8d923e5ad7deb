// What orders accesses besides barriers: fences, and operations that synchronize threads.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <semaphore.h>
#include <unordered_map>
#include <vector>

namespace {
// Lets one worker run at a time, so that a launch is a function of its schedule: the workers take
// turns in the order of their numbers. Worker 0 has the first turn.
struct Turns {
    struct Place {
        sem_t turn;
        bool ended = false;
    };
    std::mutex lock;  // a worker that waits finds its place while another one adds a place
    std::deque<Place> places;
    size_t running = 0;

    size_t add() {
        std::lock_guard<std::mutex> hold(lock);
        places.emplace_back();
        // The first worker has the first turn. It waits for it too, so that there is only one.
        sem_init(&places.back().turn, 0, places.size() == 1);
        return places.size() - 1;
    }
    Place& place(size_t number) {  // it stays where it is when others are added
        std::lock_guard<std::mutex> hold(lock);
        return places[number];
    }
    void wait(size_t number) {
        Place& mine = place(number);
        while (sem_wait(&mine.turn)) {}  // a signal may interrupt it
        running = number;
    }
    void pass(size_t number) {  // to the next worker that has not ended; it may be the same one
        std::lock_guard<std::mutex> hold(lock);
        for (size_t i = 1; i <= places.size(); ++i) {
            Place& next = places[(number + i) % places.size()];
            if (!next.ended) return void(sem_post(&next.turn));
        }
    }
};

// A set of releases: of each word, all releases up to a time. A release is a fence and, after it, a
// store or atomic that signals other threads.
struct Known {
    struct Entry {
        uintptr_t word;
        uint64_t of;  // 0: releases of device scope; else 1 + a block: all releases of this block
        uint32_t time;
        bool before(const Entry& e) const { return word != e.word ? word < e.word : of < e.of; }
    };
    static constexpr size_t kMost = 256;
    std::vector<Entry> entries;  // in the order of `before`
    uint32_t floor = 0;          // it has all releases up to this time

    uint32_t time(uintptr_t word, uint64_t of) const {
        Entry e{word, of, 0};
        auto at = std::lower_bound(entries.begin(), entries.end(), e,
                                   [](const Entry& a, const Entry& b) { return a.before(b); });
        bool there = at != entries.end() && at->word == word && at->of == of;
        return std::max(floor, there ? at->time : 0);
    }
    // Adds the releases of one word up to a time.
    void add(const Entry& e) {
        if (e.time <= floor) return;
        auto at = std::lower_bound(entries.begin(), entries.end(), e,
                                   [](const Entry& a, const Entry& b) { return a.before(b); });
        bool there = at != entries.end() && at->word == e.word && at->of == e.of;
        if (there) return void(at->time = std::max(at->time, e.time));
        entries.insert(at, e);
        shorten();
    }
    void join(const Known& other) {
        floor = std::max(floor, other.floor);
        if (other.entries.size() <= 2) {
            for (const Entry& e : other.entries) add(e);
            return;
        }
        std::vector<Entry> all;
        all.reserve(entries.size() + other.entries.size());
        auto a = entries.cbegin(), b = other.entries.cbegin();
        while (a != entries.cend() || b != other.entries.end()) {
            if (b == other.entries.end() || (a != entries.cend() && a->before(*b)))
                all.push_back(*a++);
            else if (a == entries.cend() || b->before(*a))
                all.push_back(*b++);
            else
                all.push_back(a->time > b->time ? *a : *b), ++a, ++b;
        }
        entries = std::move(all);
        shorten();
    }
    // Too many entries would cost too much time. So only the newest ones stay, and older ones become part of the
    // floor: more releases than the thread has seen. A race may then be missed, but no order is.
    void shorten() {
        if (entries.size() <= kMost) return;
        std::vector<uint32_t> times;
        for (const Entry& e : entries) times.push_back(e.time);
        size_t oldest = times.size() - kMost / 2;
        std::nth_element(times.begin(), times.begin() + oldest, times.end());
        floor = std::max(floor, times[oldest]);
        auto is_old = [&](const Entry& e) { return e.time <= floor; };
        entries.erase(std::remove_if(entries.begin(), entries.end(), is_old), entries.end());
    }
};
using KnownPointer = std::shared_ptr<const Known>;

// What a thread knows. A fence makes what it saw in a poll or a lock part of `fenced`.
struct Knowledge {
    KnownPointer fenced;
    KnownPointer polled;  // seen by an atomic or a volatile load
    KnownPointer locked;  // seen by a compare-and-swap
};

struct Fence {  // a __threadfence of one thread
    uint32_t phase;
    uint16_t stamp;
    bool of_block;       // __threadfence_block
    uint16_t all_known;  // as Warp's; what is ordered before the thread in its warp
    std::vector<uint16_t> lanes, clock;  // its row of Warp::known, and its vector clock; or empty
    KnownPointer knows;
};

struct Release {
    uint32_t time;
    uintptr_t word;  // which it stores or updates
    bool of_block;   // the fence or the atomic has block scope
    uint16_t thread;
    uint32_t phase;      // of the store or atomic
    uint16_t all_known;  // then, as Warp's
    std::shared_ptr<const Fence> fence;  // the thread's own; null if only other threads had one
};

struct BlockOrder {  // the releases and the fences of one block
    struct Point {
        uint32_t phase;
        uint16_t stamp;
        bool of_block;
    };
    std::vector<Release> releases;           // in the order of their times
    std::vector<std::vector<Point>> fences;  // of each thread: the last one in each phase
};

struct Word {  // a word that atomics or volatile accesses use
    uint32_t written = 0;  // the time of the last such store or atomic
    Known all;             // what its releases of device scope pass on
    std::unordered_map<uint64_t, Known> of_blocks;  // what the releases of a block pass on in it
};
using Synchronization = std::unordered_map<uintptr_t, Word>;
}  // namespace
