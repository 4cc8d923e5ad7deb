// __half, __half2 and their functions.
#pragma once

#include "sim_short.h"

namespace sim {
struct Half {  // 5 bits of exponent, 10 of fraction
    SIM_UNSEEN static unsigned short narrow(float value) {
        Bits is{value};
        unsigned sign = is.whole >> 16 & 0x8000, b = is.whole & 0x7fffffff;
        if (b > 0x7f800000) return 0x7fff;                     // NaN
        if (b >= 0x477ff000) return sign | 0x7c00;             // from 65520 on: infinity
        if (b >= 0x38800000) return sign | ((b + 0xfff + (b >> 13 & 1) - 0x38000000) >> 13);
        is.whole = b, is.real += 0.5f;  // the last bit of 0.5f is worth 2^-24 too
        return sign | (is.whole - 0x3f000000);
    }
    SIM_UNSEEN static float widen(unsigned short h) {
        Bits is;
        is.whole = (h & 0x7fffu) << 13;
        if (is.whole >= 0x7c00u << 13) is.whole |= 0x7f800000;
        else is.real *= 0x1p112f;
        is.whole |= (h & 0x8000u) << 16;
        return is.real;
    }
};
}  // namespace sim

typedef sim::Short<sim::Half> __half, half;
typedef sim::Two<sim::Half> __half2, half2;
SIM_SHORT(half, __half, half2, __half2)
