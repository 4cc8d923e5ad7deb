// The pipeline primitives (__pipeline_memcpy_async, ...). Pipeline objects are not supported.
#pragma once
#include <cuda_pipeline_primitives.h>
