// Cases of the suite "warps" of ../test_sim.py: after "// case NAME:" its launch, then its kernels.

// case ballot: ballot<<<1, 50, 0, stream>>>(x, reinterpret_cast<unsigned*>(y));
__global__ void ballot(const float* x, unsigned* y) {
    int i = threadIdx.x;
    y[i] = __ballot_sync(0xffffffff, x[i] > 0);
}

// case any_all: any_all<<<1, 128, 0, stream>>>(x, y);
__global__ void any_all(const float* x, float* y) {
    int i = threadIdx.x;
    y[i] = 8 * __any_sync(0xffffffff, x[i] > 48)
         + 4 * __all_sync(0xffffffff, x[i] > -50)
         + 2 * __any_sync(0xffffffff, x[i] > 99) + __all_sync(0xffffffff, x[i] > -99);
}

// case match_any: match_any<<<1, 32, 0, stream>>>(x, reinterpret_cast<unsigned*>(y));
__global__ void match_any(const float* x, unsigned* y) {
    int i = threadIdx.x;
    y[i] = __match_any_sync(0xffffffff, int(x[i]) & 3);
}

// case match_all: match_all<<<1, 32, 0, stream>>>(x, y);
__global__ void match_all(const float* x, float* y) {
    int same, other;
    unsigned a = __match_all_sync(0xffffffff, 7, &same);
    unsigned b = __match_all_sync(0xffffffff, int(threadIdx.x), &other);
    y[threadIdx.x] = (a == 0xffffffff) * 8 + (same != 0) * 4 + (b == 0) * 2
                   + (other == 0);
}

// case half_warps: half_warps<<<1, 32, 0, stream>>>(x, y);
__global__ void half_warps(const float* x, float* y) {
    __shared__ float s_x[32];
    int lane = threadIdx.x;
    s_x[lane] = 0;
    __syncwarp();
    if (lane < 16) {
        s_x[lane] = x[lane];
        __syncwarp(0x0000ffff);
        y[lane] = s_x[15 - lane] + __shfl_sync(0x0000ffff, lane, 3);
    } else {
        for (int round = 0; round < 3; ++round) {
            s_x[lane] += x[lane];
            __syncwarp(0xffff0000);
        }
        y[lane] = s_x[47 - lane] + __shfl_sync(0xffff0000, lane, 20);
    }
}

// case mixed_masks: mixed_masks<<<1, 32, 0, stream>>>(x, y);
__global__ void mixed_masks(const float* x, float* y) {
    int lane = threadIdx.x, extra = 0;
    if (lane % 2 == 0) extra = __shfl_xor_sync(0x55555555, lane, 2);
    y[lane] = __shfl_xor_sync(0xffffffff, x[lane], 1) + extra;
}

// case activemask: activemask<<<1, 96, 0, stream>>>(x, y, n);
__global__ void activemask(const float* x, float* y, int n) {
    int i = threadIdx.x;
    if (i == 0) y[0] = 0;
    __syncthreads();
    if (i >= n) return;
    if (i % 3 == 0) {
        unsigned mask = __activemask();
        int first = __ffs(mask) - 1, total = __reduce_add_sync(mask, int(x[i]));
        if (i % 32 == first) atomicAdd(y, float(total));
    }
}

// case early_exit: warp_early_exit<<<1, 64, 0, stream>>>(x, y, n);
__global__ void warp_early_exit(const float* x, float* y, int n) {
    int i = threadIdx.x;
    if (i >= n) return;
    y[i] = __shfl_down_sync(__activemask(), x[i], 1);
}
