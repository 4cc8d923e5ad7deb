__global__ void transpose(const float* a, float* b, int rows, int columns) {
    __shared__ float s_tile[32][33];
    int column = blockIdx.x * 32 + threadIdx.x;
    for (int i = threadIdx.y; i < 32; i += 8) {
        int row = blockIdx.y * 32 + i;
        if (row < rows && column < columns)
            s_tile[i][threadIdx.x] = a[row * columns + column];
    }
    __syncthreads();  // barrier
    int row = blockIdx.y * 32 + threadIdx.x;
    for (int i = threadIdx.y; i < 32; i += 8) {
        int column = blockIdx.x * 32 + i;
        if (row < rows && column < columns)
            b[column * rows + row] = s_tile[threadIdx.x][i];
    }
}
