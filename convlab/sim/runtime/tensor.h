// Tensor cores, asynchronous copies and their barriers, as kernels call them: see
// ../include/sim_tensor.h.

void sim_partial_warp(unsigned came) {
    fault("warp mask", CALLER, "a warp multiplies with lanes 0x%08x only: all 32 must come", came);
}
