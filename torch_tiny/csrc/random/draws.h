// The portable stream many elements at a time, in loops that the compiler makes vectors of.
#pragma once

#include "random/philox.h"

namespace tiny {

inline constexpr int kLanes = 16;

// The words of consecutive elements.
struct Blocks {
  uint32_t word[4][kLanes];

  philox::Words of(int lane) const {
    return {word[0][lane], word[1][lane], word[2][lane], word[3][lane]};
  }
};

enum class Standard : uint8_t { kUniform, kNormal, kExponential, kCauchy };

void fill_blocks(const Draw& draw, uint64_t first, Blocks& out);

// `bits` are those of a uniform number.
void standard_floats(Standard which, int bits, const Blocks& blocks, float* out);
double standard_double(Standard which, const philox::Words& words);

}  // namespace tiny
