// The pipeline functions that kernels call by name; pipeline objects are not supported.
#pragma once
#include <cuda_pipeline_primitives.h>
