// __nv_bfloat16, __nv_bfloat162 and their functions.
#pragma once

#include "sim_short.h"

namespace sim {
struct Bfloat16 {  // the upper half of a float
    SIM_UNSEEN static unsigned short narrow(float value) {
        Bits is{value};
        if ((is.whole & 0x7fffffff) > 0x7f800000) return 0x7fff;  // NaN
        return (unsigned short)((is.whole + 0x7fff + (is.whole >> 16 & 1)) >> 16);
    }
    SIM_UNSEEN static float widen(unsigned short h) {
        Bits is;
        is.whole = unsigned(h) << 16;
        if ((is.whole & 0x7fffffff) > 0x7f800000) is.whole = 0x7fffffff;  // see __uint_as_float
        return is.real;
    }
};
}  // namespace sim

typedef sim::Short<sim::Bfloat16> __nv_bfloat16, nv_bfloat16;
typedef sim::Two<sim::Bfloat16> __nv_bfloat162, nv_bfloat162;
SIM_SHORT(bfloat16, __nv_bfloat16, bfloat162, __nv_bfloat162)
