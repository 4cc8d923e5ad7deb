// Of CUDA's pipelines what kernels call by name; pipelines as objects are not here.
#pragma once
#include <cuda_pipeline_primitives.h>
