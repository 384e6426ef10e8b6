#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")  // -O2 leaves most of these loops as they are
#endif
#include "random/draws.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TINY_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define TINY_CLONES
#endif

namespace tiny {
namespace {

TINY_CLONES void uniforms(int bits, const Blocks& blocks, float* out) {
  const float unit = 1.0F / static_cast<float>(1U << bits);
  for (int l = 0; l < kLanes; ++l) {
    out[l] = static_cast<float>(static_cast<int32_t>(blocks.word[0][l] >> (32 - bits))) * unit;
  }
}

TINY_CLONES void normals(const Blocks& blocks, float* out) {
#pragma omp simd
  for (int l = 0; l < kLanes; ++l) {
    out[l] = philox::normal(blocks.word[0][l], blocks.word[2][l]);
  }
}

TINY_CLONES void exponentials(const Blocks& blocks, float* out) {
#pragma omp simd
  for (int l = 0; l < kLanes; ++l) {
    out[l] = philox::exponential(blocks.word[0][l]);
  }
}

TINY_CLONES void cauchies(const Blocks& blocks, float* out) {
#pragma omp simd
  for (int l = 0; l < kLanes; ++l) {
    out[l] = philox::cauchy(blocks.word[0][l]);
  }
}

}  // namespace

TINY_CLONES void fill_blocks(const Draw& draw, uint64_t first, Blocks& out) {
  uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    c0[l] = static_cast<uint32_t>(first + l);
    c1[l] = static_cast<uint32_t>((first + l) >> 32);
    c2[l] = static_cast<uint32_t>(draw.offset);
    c3[l] = static_cast<uint32_t>(draw.offset >> 32);
  }
  auto key0 = static_cast<uint32_t>(draw.seed), key1 = static_cast<uint32_t>(draw.seed >> 32);
  for (int i = 0; i < 10; ++i) {
#pragma omp simd
    for (int l = 0; l < kLanes; ++l) {
      const uint64_t a = philox::kMultipliers[0] * c0[l], b = philox::kMultipliers[1] * c2[l];
      c0[l] = static_cast<uint32_t>(b >> 32) ^ c1[l] ^ key0;
      c1[l] = static_cast<uint32_t>(b);
      c2[l] = static_cast<uint32_t>(a >> 32) ^ c3[l] ^ key1;
      c3[l] = static_cast<uint32_t>(a);
    }
    key0 += philox::kWeyl[0];
    key1 += philox::kWeyl[1];
  }
  for (int l = 0; l < kLanes; ++l) {
    out.word[0][l] = c0[l];
    out.word[1][l] = c1[l];
    out.word[2][l] = c2[l];
    out.word[3][l] = c3[l];
  }
}

void standard_floats(Standard which, int bits, const Blocks& blocks, float* out) {
  switch (which) {
    case Standard::kUniform:
      return uniforms(bits, blocks, out);
    case Standard::kNormal:
      return normals(blocks, out);
    case Standard::kExponential:
      return exponentials(blocks, out);
    case Standard::kCauchy:
      return cauchies(blocks, out);
  }
}

double standard_double(Standard which, const philox::Words& words) {
  switch (which) {
    case Standard::kUniform:
      return philox::uniform_double(words[0], words[1]);
    case Standard::kNormal:
      return philox::normal_double(words);
    case Standard::kExponential:
      return philox::negative_log(philox::uniform_above_zero(words[0], words[1]));
    case Standard::kCauchy:
      return philox::cauchy_double(words);
  }
  return 0;
}

}  // namespace tiny
