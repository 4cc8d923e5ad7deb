// nvcc declares these names without a header; some files include this one nevertheless.
#pragma once
#include <cuda_runtime.h>
