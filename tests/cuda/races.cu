// Kernels of several threads that share words; see test_races.py. `expect` is what the simulator must report:
// "race" is an error, "warning KIND" is none, "nothing" is no finding. `says`: a part of the text.
// Each kernel gets int* data (y: 64 words that nothing has written), int* flag (the workspace: 4 zeros), and n = 1.
#include "convlab.cuh"

void run(void (*kernel)(int*, int*, int), int blocks, int threads, float* y, void* flags, cudaStream_t stream) {
    cudaMemsetAsync(flags, 0, 16, stream);
    kernel<<<blocks, threads, 0, stream>>>((int*)y, (int*)flags, 1);
}

// ---- volatile

// case volatile_other_values: run(volatile_other_values, 2, 1, y, workspace, stream);
// expect: race
// says: store to y[n=0, k=0, p=0, q=0]
__global__ void volatile_other_values(int* data, int* flag, int n) {
    *(volatile int*)data = blockIdx.x;
}

// case volatile_same_value: run(volatile_same_value, 2, 1, y, workspace, stream);
// expect: warning written twice
__global__ void volatile_same_value(int* data, int* flag, int n) { *(volatile int*)data = 7; }

// case volatile_data_without_fences: run(volatile_data_without_fences, 2, 1, y, workspace, stream);
// expect: race
// says: volatile orders nothing
__global__ void volatile_data_without_fences(int* data, int* flag, int n) {
    volatile int *v = data, *f = flag;
    if (blockIdx.x == 0) {
        v[0] = 5;
        f[0] = 1;
    } else {
        while (!f[0]) {}
        v[1] = v[0];
    }
}

// case volatile_fence_after_the_flag: run(volatile_fence_after_the_flag, 2, 1, y, workspace, stream);
// expect: race
__global__ void volatile_fence_after_the_flag(int* data, int* flag, int n) {
    volatile int *v = data, *f = flag;
    if (blockIdx.x == 0) {
        v[0] = 5;
        f[0] = 1;
        __threadfence();
    } else {
        while (!f[0]) {}
        __threadfence();
        v[1] = v[0];
    }
}

// case volatile_flag_with_fences: run(volatile_flag_with_fences, 2, 1, y, workspace, stream);
// expect: nothing
__global__ void volatile_flag_with_fences(int* data, int* flag, int n) {
    volatile int* f = flag;
    if (blockIdx.x == 0) {
        data[0] = 5;
        __threadfence();
        f[0] = 1;
    } else {
        while (!f[0]) {}
        __threadfence();
        data[1] = data[0];
    }
}

// case volatile_flag_with_fences_between_warps: run(volatile_flag_with_fences_between_warps, 1, 64, y, workspace, stream);
// expect: nothing
__global__ void volatile_flag_with_fences_between_warps(int* data, int* flag, int n) {
    volatile int* f = flag;
    if (threadIdx.x == 0) {
        data[0] = 5;
        __threadfence_block();
        f[0] = 1;
    } else if (threadIdx.x == 32) {
        while (!f[0]) {}
        __threadfence_block();
        data[1] = data[0];
    }
}

// case volatile_shared_flag: run(volatile_shared_flag, 1, 64, y, workspace, stream);
// expect: nothing
__global__ void volatile_shared_flag(int* data, int* flag, int n) {
    __shared__ volatile int s_flag;
    __shared__ int s_data;
    if (threadIdx.x == 0) s_flag = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        s_data = 5;
        __threadfence_block();
        s_flag = 1;
    } else if (threadIdx.x == 32) {
        while (!s_flag) {}
        __threadfence_block();
        data[1] = s_data;
    }
}

// case volatile_shared_data_of_two_warps: run(volatile_shared_data_of_two_warps, 1, 64, y, workspace, stream);
// expect: race
// says: volatile orders nothing
__global__ void volatile_shared_data_of_two_warps(int* data, int* flag, int n) {
    __shared__ volatile int s_data[64];
    s_data[threadIdx.x] = threadIdx.x;
    data[threadIdx.x] = s_data[63 - threadIdx.x];
}

// case two_flags_after_one_fence: run(two_flags_after_one_fence, 3, 1, y, workspace, stream);
// note: the second signal may be data as well
// expect: warning race
__global__ void two_flags_after_one_fence(int* data, int* flag, int n) {
    volatile int* f = flag;
    if (blockIdx.x == 0) {
        data[0] = 5;
        __threadfence();
        f[0] = 1;
        f[1] = 1;
    } else {
        while (!f[blockIdx.x - 1]) {}
        __threadfence();
        data[blockIdx.x] = data[0];
    }
}

// ---- fences

// case flag_by_atomics: run(flag_by_atomics, 2, 1, y, workspace, stream);
// expect: nothing
__global__ void flag_by_atomics(int* data, int* flag, int n) {
    if (blockIdx.x == 0) {
        data[0] = 5;
        __threadfence();
        atomicExch(flag, 1);
    } else {
        while (atomicAdd(flag, 0) == 0) {}
        __threadfence();
        data[1] = data[0];
    }
}

// case no_fence_before_the_signal: run(no_fence_before_the_signal, 2, 1, y, workspace, stream);
// expect: race
__global__ void no_fence_before_the_signal(int* data, int* flag, int n) {
    if (blockIdx.x == 0) {
        data[0] = 5;
        atomicExch(flag, 1);
    } else {
        while (atomicAdd(flag, 0) == 0) {}
        __threadfence();
        data[1] = data[0];
    }
}

// case fence_before_the_data: run(fence_before_the_data, 2, 1, y, workspace, stream);
// expect: race
// says: no __threadfence() between this access and its signal
__global__ void fence_before_the_data(int* data, int* flag, int n) {
    if (blockIdx.x == 0) {
        __threadfence();
        data[0] = 5;
        atomicExch(flag, 1);
    } else {
        while (atomicAdd(flag, 0) == 0) {}
        __threadfence();
        data[1] = data[0];
    }
}

// case another_flag: run(another_flag, 2, 1, y, workspace, stream);
// note: the reader waits for a word that the writer signals only after other data
// expect: race
__global__ void another_flag(int* data, int* flag, int n) {
    if (blockIdx.x == 0) {
        atomicExch(flag + 1, 1);
        data[0] = 5;
        __threadfence();
        atomicExch(flag, 1);
    } else {
        while (atomicAdd(flag + 1, 0) == 0) {}
        __threadfence();
        data[1] = data[0];
    }
}

// case fence_of_the_block: run(fence_of_the_block, 2, 1, y, workspace, stream);
// expect: race
// says: has block scope, so it orders only its own block
__global__ void fence_of_the_block(int* data, int* flag, int n) {
    if (blockIdx.x == 0) {
        data[0] = 5;
        __threadfence_block();
        atomicExch(flag, 1);
    } else {
        while (atomicAdd(flag, 0) == 0) {}
        __threadfence();
        data[1] = data[0];
    }
}

// case atomic_of_the_block: run(atomic_of_the_block, 2, 1, y, workspace, stream);
// expect: race
// says: it is atomic only among the threads of its block
__global__ void atomic_of_the_block(int* data, int* flag, int n) { atomicAdd_block(data, 1); }

// case atomic_of_the_block_in_it: run(atomic_of_the_block_in_it, 1, 64, y, workspace, stream);
// expect: nothing
__global__ void atomic_of_the_block_in_it(int* data, int* flag, int n) {
    atomicAdd_block(flag + threadIdx.x % 4, 1);
}

// case signal_of_the_block: run(signal_of_the_block, 2, 1, y, workspace, stream);
// expect: race
__global__ void signal_of_the_block(int* data, int* flag, int n) {
    if (blockIdx.x == 0) {
        data[0] = 5;
        __threadfence();
        atomicExch_block(flag, 1);
    } else {
        while (atomicAdd(flag, 0) == 0) {}
        __threadfence();
        data[1] = data[0];
    }
}

// case fence_of_each_thread_before_a_barrier: run(fence_of_each_thread_before_a_barrier, 8, 64, y, workspace, stream);
// note: the last block adds up what the others stored
// expect: nothing
__global__ void fence_of_each_thread_before_a_barrier(int* data, int* flag, int n) {
    __shared__ bool s_last;
    if (threadIdx.x < 8) data[blockIdx.x * 8 + threadIdx.x] = threadIdx.x;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) s_last = atomicAdd(flag, 1) == int(gridDim.x) - 1;
    __syncthreads();
    if (s_last) {
        int sum = data[threadIdx.x];
        __syncthreads();
        data[threadIdx.x] = sum + (threadIdx.x == 0);
    }
}

// case fence_of_one_thread_before_a_barrier: run(fence_of_one_thread_before_a_barrier, 8, 64, y, workspace, stream);
// note: thread 0's fence comes before the barrier, so it covers only its own stores
// expect: race
__global__ void fence_of_one_thread_before_a_barrier(int* data, int* flag, int n) {
    __shared__ bool s_last;
    if (threadIdx.x < 8) data[blockIdx.x * 8 + threadIdx.x] = threadIdx.x;
    if (threadIdx.x == 0) __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) s_last = atomicAdd(flag, 1) == int(gridDim.x) - 1;
    __syncthreads();
    if (s_last && threadIdx.x == 0) flag[1] = data[9];
}

// case fence_of_thread_0_after_a_barrier: run(fence_of_thread_0_after_a_barrier, 8, 64, y, workspace, stream);
// expect: nothing
__global__ void fence_of_thread_0_after_a_barrier(int* data, int* flag, int n) {
    __shared__ bool s_last;
    if (threadIdx.x < 8) data[blockIdx.x * 8 + threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        s_last = atomicAdd(flag, 1) == int(gridDim.x) - 1;
    }
    __syncthreads();
    if (s_last && threadIdx.x == 0) flag[1] = data[9], flag[0] = 0;
}

// case data_of_a_warp: run(data_of_a_warp, 2, 32, y, workspace, stream);
// note: the lanes meet before lane 0 signals, and after lane 0 has polled
// expect: nothing
__global__ void data_of_a_warp(int* data, int* flag, int n) {
    if (blockIdx.x == 0) {
        data[threadIdx.x] = threadIdx.x;
        __syncwarp();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicExch(flag, 1);
        }
    } else {
        if (threadIdx.x == 0) {
            while (atomicAdd(flag, 0) == 0) {}
            __threadfence();
        }
        __syncwarp();
        data[32 + threadIdx.x] = data[31 - threadIdx.x];
    }
}

// case data_of_a_warp_that_does_not_meet: run(data_of_a_warp_that_does_not_meet, 2, 32, y, workspace, stream);
// expect: race
__global__ void data_of_a_warp_that_does_not_meet(int* data, int* flag, int n) {
    if (blockIdx.x == 0) {
        data[threadIdx.x] = threadIdx.x;
        if (threadIdx.x == 0) {
            __threadfence();
            atomicExch(flag, 1);
        }
    } else if (threadIdx.x == 0) {
        while (atomicAdd(flag, 0) == 0) {}
        __threadfence();
        data[32] = data[31];
    }
}

// case passed_on: run(passed_on, 3, 1, y, workspace, stream);
// note: block 2 never polls block 0's flag, but block 1 has
// expect: nothing
__global__ void passed_on(int* data, int* flag, int n) {
    if (blockIdx.x == 0) {
        data[0] = 5;
        __threadfence();
        atomicExch(flag, 1);
    } else {
        while (atomicAdd(flag + blockIdx.x - 1, 0) == 0) {}
        __threadfence();
        if (blockIdx.x == 1) atomicExch(flag + 1, 1);
        else data[1] = data[0];
    }
}

// ---- locks

// case lock: run(lock, 8, 2, y, workspace, stream);
// expect: nothing
__global__ void lock(int* data, int* flag, int n) {
    if (threadIdx.x) return;
    while (atomicCAS(flag, 0, 1) != 0) {}
    __threadfence();
    *(volatile int*)data = blockIdx.x;
    __threadfence();
    atomicExch(flag, 0);
}

// case lock_released_by_a_volatile_store: run(lock_released_by_a_volatile_store, 8, 1, y, workspace, stream);
// expect: nothing
__global__ void lock_released_by_a_volatile_store(int* data, int* flag, int n) {
    while (atomicCAS(flag, 0, 1) != 0) {}
    __threadfence();
    data[0] = blockIdx.x;
    __threadfence();
    *(volatile int*)flag = 0;
}

// case lock_taken_without_a_fence: run(lock_taken_without_a_fence, 8, 1, y, workspace, stream);
// expect: race
// says: has taken the lock, but called no __threadfence() since
__global__ void lock_taken_without_a_fence(int* data, int* flag, int n) {
    while (atomicCAS(flag, 0, 1) != 0) {}
    data[0] = blockIdx.x;
    __threadfence();
    atomicExch(flag, 0);
}

// case lock_released_without_a_fence: run(lock_released_without_a_fence, 8, 1, y, workspace, stream);
// expect: race
__global__ void lock_released_without_a_fence(int* data, int* flag, int n) {
    while (atomicCAS(flag, 0, 1) != 0) {}
    __threadfence();
    data[0] = blockIdx.x;
    atomicExch(flag, 0);
}

// case two_locks: run(two_locks, 8, 1, y, workspace, stream);
// note: odd and even blocks take different locks for one word
// expect: race
__global__ void two_locks(int* data, int* flag, int n) {
    int* mine = flag + blockIdx.x % 2;
    while (atomicCAS(mine, 0, 1) != 0) {}
    __threadfence();
    data[0] = blockIdx.x;
    __threadfence();
    atomicExch(mine, 0);
}

// ---- atomics and plain accesses

// case guarded_atomic: run(guarded_atomic, 8, 32, y, workspace, stream);
// expect: warning race
// says: a plain load may read an old value
__global__ void guarded_atomic(int* data, int* flag, int n) {
    int v = blockIdx.x * 32 + threadIdx.x;
    if (flag[0] < v) atomicMax(flag, v);
}

// case guarded_by_a_volatile_load: run(guarded_by_a_volatile_load, 8, 32, y, workspace, stream);
// expect: nothing
__global__ void guarded_by_a_volatile_load(int* data, int* flag, int n) {
    int v = blockIdx.x * 32 + threadIdx.x;
    if (*(volatile int*)flag < v) atomicMax(flag, v);
}

// case compare_and_swap_loop: run(compare_and_swap_loop, 8, 32, y, workspace, stream);
// expect: nothing
__global__ void compare_and_swap_loop(int* data, int* flag, int n) {
    int old = flag[0], seen;
    do {
        seen = old;
        old = atomicCAS(flag, seen, seen + 1);
    } while (old != seen);
}

// case plain_load_of_a_sum: run(plain_load_of_a_sum, 8, 32, y, workspace, stream);
// expect: race
__global__ void plain_load_of_a_sum(int* data, int* flag, int n) {
    if (threadIdx.x == 0) atomicAdd(flag, 1);
    if (threadIdx.x == 1) data[blockIdx.x] = flag[0];
}

// case plain_store_and_atomic: run(plain_store_and_atomic, 2, 1, y, workspace, stream);
// expect: race
__global__ void plain_store_and_atomic(int* data, int* flag, int n) {
    if (blockIdx.x == 0) atomicExch(data, 1);
    else data[0] = 2;
}

// case added_without_atomics: run(added_without_atomics, 8, 32, y, workspace, stream);
// expect: race
__global__ void added_without_atomics(int* data, int* flag, int n) { flag[0] += threadIdx.x; }

// case the_same_value_twice: run(the_same_value_twice, 8, 32, y, workspace, stream);
// expect: warning written twice
__global__ void the_same_value_twice(int* data, int* flag, int n) { data[threadIdx.x] = threadIdx.x; }

// case the_same_value_and_a_reader: run(the_same_value_and_a_reader, 8, 32, y, workspace, stream);
// expect: race
__global__ void the_same_value_and_a_reader(int* data, int* flag, int n) {
    if (threadIdx.x != 7) flag[1] = 1;
    else data[blockIdx.x] = flag[1];
}

// ---- loops

// case no_barrier_at_the_end_of_the_loop: run(no_barrier_at_the_end_of_the_loop, 1, 64, y, workspace, stream);
// expect: race
// says: a __syncthreads() is missing at the end of the loop
__global__ void no_barrier_at_the_end_of_the_loop(int* data, int* flag, int n) {
    __shared__ int s_tile[64];
    int sum = 0;
    for (int i = 0; i < 4 * n; ++i) {
        s_tile[threadIdx.x] = i + threadIdx.x;
        __syncthreads();
        for (int j = 0; j < 64; ++j) sum += s_tile[j];
    }
    data[threadIdx.x] = sum;
}

// case no_barrier_before_the_use: run(no_barrier_before_the_use, 1, 64, y, workspace, stream);
// expect: race
// lacks: end of the loop
__global__ void no_barrier_before_the_use(int* data, int* flag, int n) {
    __shared__ int s_tile[64];
    int sum = 0;
    for (int i = 0; i < 4 * n; ++i) {
        s_tile[threadIdx.x] = i + threadIdx.x;
        for (int j = 0; j < 64; ++j) sum += s_tile[j];
        __syncthreads();
    }
    data[threadIdx.x] = sum;
}

// case both_barriers: run(both_barriers, 1, 64, y, workspace, stream);
// expect: nothing
__global__ void both_barriers(int* data, int* flag, int n) {
    __shared__ int s_tile[64];
    int sum = 0;
    for (int i = 0; i < 4 * n; ++i) {
        s_tile[threadIdx.x] = i + threadIdx.x;
        __syncthreads();
        for (int j = 0; j < 64; ++j) sum += s_tile[j];
        __syncthreads();
    }
    data[threadIdx.x] = sum;
}
