// What nvcc declares of itself; some files ask for it by this name.
#pragma once
#include <cuda_runtime.h>
