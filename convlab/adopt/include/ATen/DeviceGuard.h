// A stand-in for the header of this name; see adopt/README.md.
#pragma once
#include "adopt/tensor.h"
