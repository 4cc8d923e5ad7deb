#include "sim.h"
#include <cstdio>
#include <unistd.h>
extern "C" {
void sim_begin(int threads, int trace, int report);
void* sim_map(const char* name, int fd, size_t offset, size_t bytes, int writable);
void sim_finish();
const char* conv2d(const void*, const float*, const float*, const float*, float*, void*, size_t,
                   void*);
}
int main(int argc, char** argv) {
    sim_begin(2, 1, 1);
    const int n = 3 * 96;
    auto* x = (float*)sim_map("x", -1, 0, 4 * n, 2);
    auto* y = (float*)sim_map("y", -1, 0, 4 * n, 1);
    for (int i = 0; i < n; ++i) x[i] = i;
    int dims[16] = {1, 1, 1, n, 1, 1, 1, 1, n, 1, 1, 0, 0, 1, argc, 1};
    const char* error = conv2d(dims, x, nullptr, nullptr, y, nullptr, 0, nullptr);
    if (error) return puts(error), 1;
    for (int b = 0; b < 3; ++b)   // reversed, then swapped with the neighbouring lane
        for (int i = 0; i < 96; ++i)
            if (y[b * 96 + i] != x[b * 96 + 95 - (i ^ 1)] + 0.5f) return printf("y[%d]\n", i), 1;
    sim_finish();
}
