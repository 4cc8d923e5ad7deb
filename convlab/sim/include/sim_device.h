// The GPU that the simulator is. simulation.py sets it, from the table of core/machine/gpus.py.
#pragma once

#include <stdint.h>

// So many blocks can run at the same time at most: four for each SM of an H200.
constexpr int kSimMostBlocks = 4 * 132;
struct SimDevice {
    int64_t sm, sms, threads, blocks, registers;  // sm: 90 is 9.0; the others but sms: of one SM
    int64_t shared_bytes, shared_optin, shared_reserved;
    int64_t l2_bytes, memory_bytes, clock_khz, memory_clock_khz, bus_bits;
    char name[200];
};
extern "C" const SimDevice* sim_device();
