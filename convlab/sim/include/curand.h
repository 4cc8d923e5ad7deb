// The declarations of cuRAND only: many files include this header, and few kernels call it.
#pragma once
#include <cuda_runtime.h>

typedef struct curandGenerator_st* curandGenerator_t;
typedef enum { CURAND_STATUS_SUCCESS = 0 } curandStatus_t;
#define SIM_NO_CURAND(name)                                                                     \
    template <typename... A>                                                                    \
    SIM_REFUSED("this is cuRAND") curandStatus_t name(const A&...);
SIM_NO_CURAND(curandCreateGenerator) SIM_NO_CURAND(curandSetPseudoRandomGeneratorSeed)
SIM_NO_CURAND(curandGenerateUniform) SIM_NO_CURAND(curandGenerateNormal)
typedef enum { CURAND_RNG_PSEUDO_DEFAULT = 100 } curandRngType_t;
