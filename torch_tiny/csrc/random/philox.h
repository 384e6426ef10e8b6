// The portable stream of random numbers: Philox4x32-10 and the distributions made from its words.
// lower/philox.py has the same formulas in UOps, and engine/cuda_random.py compiles this file for
// GPUs, so it asks little of the standard library. docs/random.md says what each formula is.
// Integers and single IEEE operations only, in a fixed order, so that both give the same bits.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace tiny {

// What a call draws from: the seed is the key, the call's number the upper half of the counter.
struct Draw {
  uint64_t seed = 0;
  uint64_t offset = 0;
};

namespace philox {

using Words = std::array<uint32_t, 4>;

inline constexpr uint64_t kMultipliers[2] = {0xD2511F53, 0xCD9E8D57};
inline constexpr uint32_t kWeyl[2] = {0x9E3779B9, 0xBB67AE85};

inline void rounds(Words& c, uint32_t key0, uint32_t key1) {
  for (int i = 0; i < 10; ++i) {
    const uint64_t a = kMultipliers[0] * c[0], b = kMultipliers[1] * c[2];
    c = {
        static_cast<uint32_t>(b >> 32) ^ c[1] ^ key0,
        static_cast<uint32_t>(b),
        static_cast<uint32_t>(a >> 32) ^ c[3] ^ key1,
        static_cast<uint32_t>(a)};
    key0 += kWeyl[0];
    key1 += kWeyl[1];
  }
}

// The four words of one element.
inline Words words(const Draw& draw, uint64_t element) {
  Words c = {
      static_cast<uint32_t>(element),
      static_cast<uint32_t>(element >> 32),
      static_cast<uint32_t>(draw.offset),
      static_cast<uint32_t>(draw.offset >> 32)};
  rounds(c, static_cast<uint32_t>(draw.seed), static_cast<uint32_t>(draw.seed >> 32));
  return c;
}

inline uint32_t high(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>((uint64_t{a} * b) >> 32);
}

inline uint64_t high(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
}

inline uint64_t wide(uint32_t high, uint32_t low) {
  return uint64_t{high} << 32 | low;
}

// Uniform in [0, 1).
inline float uniform(uint32_t word) {
  return static_cast<float>(static_cast<int32_t>(word >> 8)) * 0x1p-24F;
}

inline double uniform_double(uint32_t high, uint32_t low) {
  return static_cast<double>(wide(high, low) >> 11) * 0x1p-53;
}

// In [0, range); a range of 0 stands for 2^64.
inline uint64_t below(uint64_t range, uint32_t upper, uint32_t lower) {
  if (range == 0) {
    return wide(upper, lower);
  }
  if (range > (uint64_t{1} << 32)) {
    return high(wide(upper, lower), range);
  }
  return (upper * range + ((lower * range) >> 32)) >> 32;
}

// -log2 of (word / 2^32), with 30 bits after the point; 0 counts as 1.
struct Log {
  uint32_t whole;
  uint32_t part;
};

inline Log negative_log2(uint32_t word) {
  constexpr std::array<int32_t, 11> kCoefficients = {
      445643124,
      -516360679,
      86060115,
      -19124247,
      4781049,
      -1276196,
      354534,
      -98442,
      28672,
      -11347,
      3420};
  uint32_t zeros = 0;
  word = std::max<uint32_t>(word, 1);
  for (uint32_t step = 16; step > 0; step /= 2) {
    const bool small = word < uint32_t{1} << (32 - step);
    word = small ? word << step : word;
    zeros = small ? zeros + step : zeros;
  }
  const auto x = static_cast<int32_t>((word - 0xC0000000U) << 1);  // [0.5, 1) as [-1, 1)
  int32_t sum = kCoefficients.back();
  for (size_t i = kCoefficients.size() - 1; i-- > 0;) {
    sum = kCoefficients[i] + static_cast<int32_t>((int64_t{x} * sum) >> 31);
  }
  return {zeros, static_cast<uint32_t>(std::clamp(sum, 0, (1 << 30) - 1))};
}

// The same as a float that is never 0.
inline float negative_log2_float(uint32_t word) {
  const auto [whole, part] = negative_log2(word);
  return static_cast<float>(whole) + static_cast<float>(2 * part + 1) * 0x1p-31F;
}

// sin(pi/2 * y / 2^32) / y, scaled by 2^63.
inline uint32_t sine_over(uint32_t y) {
  constexpr std::array<uint32_t, 6> kCoefficients = {
      3373259426, 1387197332, 171138563, 10053783, 344144, 7370};
  const auto square = high(y, y);
  uint32_t sum = kCoefficients.back();
  for (size_t i = kCoefficients.size() - 1; i-- > 0;) {
    sum = kCoefficients[i] - high(square, sum);
  }
  return sum;
}

// The largest integer whose square is at most n < 2^48, whatever the last bits of sqrtf are.
inline uint32_t root(uint64_t n) {
  const float near = static_cast<float>(n >> 24) * 0x1p24F + static_cast<float>(n & 0xFFFFFF);
  uint64_t found = std::max<uint64_t>(static_cast<uint32_t>(std::sqrt(near)), 8) - 8;
  for (uint64_t step = 8; step > 0; step /= 2) {
    const auto larger = found + step;
    found = larger * larger <= n ? larger : found;
  }
  return static_cast<uint32_t>(found);
}

// Box and Muller's, with 21 bits after the point.
inline float normal(uint32_t radius, uint32_t angle) {
  const auto [whole, part] = negative_log2(radius);
  const uint64_t log = (whole << 27) + (part >> 3);
  const uint64_t length = root((log * 2977044472) >> 16);  // 2977044472 = 2 ln(2) 2^31
  const uint32_t quarter = angle >> 30, within = angle << 2;
  const uint32_t y = (quarter & 1) != 0 ? ~within : within;
  const uint64_t sine = high(y, sine_over(y));
  const float size = static_cast<float>(static_cast<uint32_t>((length * sine) >> 31)) * 0x1p-21F;
  return (quarter & 2) != 0 ? -size : size;
}

inline float exponential(uint32_t word) {
  return negative_log2_float(word) * 0.693147182F;
}

// A quotient of sine and cosine; the angle never reaches a right one.
inline float cauchy(uint32_t word) {
  const uint32_t y = word << 1, rest = ~y;
  const float sine = static_cast<float>(y) * static_cast<float>(sine_over(y));
  const float cosine = static_cast<float>(rest) * static_cast<float>(sine_over(rest));
  return (word >> 31) != 0 ? -(sine / cosine) : sine / cosine;
}

inline float exp(float x) {
  x = std::min(std::max(x, -103.0F), 89.0F);
  const float scaled = x * 1.44269504F;
  const auto power = static_cast<int32_t>(scaled < 0 ? scaled - 0.5F : scaled + 0.5F);
  const float n = static_cast<float>(power);
  const float r = (x - n * 0.693359375F) - n * -2.12194442e-4F;
  constexpr float kTerms[] = {1.38888889e-3F, 8.33333377e-3F, 4.16666679e-2F, 1.66666672e-1F, 0.5F};
  float sum = 1.98412698e-4F;
  for (const float term : kTerms) {
    sum = sum * r + term;
  }
  sum = ((sum * r) * r + r) + 1.0F;
  const int32_t half = power >> 1;
  return (sum * std::bit_cast<float>((half + 127) << 23)) *
      std::bit_cast<float>((power - half + 127) << 23);
}

// --- in double precision ---

// -log(x) for 0 < x <= 1 that is not subnormal.
inline double negative_log(double x) {
  const auto bits = std::bit_cast<int64_t>(x);
  const double fraction = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFF) | (int64_t{1022} << 52));
  const bool small = fraction < 0.70710678118654752;
  const double f = small ? fraction * 2.0 : fraction;
  const double power = static_cast<double>((bits >> 52) - 1022 - (small ? 1 : 0));
  const double s = (f - 1.0) / (f + 1.0), square = s * s;
  double sum = 1.0 / 25;
  for (int k = 23; k > 0; k -= 2) {
    sum = sum * square + 1.0 / k;
  }
  return -(power * 0.69314718055994531 + (s * 2.0) * sum);
}

inline double uniform_above_zero(uint32_t high, uint32_t low) {
  return static_cast<double>((wide(high, low) >> 11) + 1) * 0x1p-53;
}

// sin(pi/2 y) for y in [0, 1]
inline double sine(double y) {
  constexpr std::array<double, 11> kCoefficients = {
      1.5707963267948966,
      -0.6459640975062463,
      0.07969262624616705,
      -0.004681754135318688,
      0.00016044118478735983,
      -3.598843235212085e-06,
      5.692172921967927e-08,
      -6.688035109811468e-10,
      6.0669357311061955e-12,
      -4.377065467313742e-14,
      2.571422892860474e-16};
  const double square = y * y;
  double sum = kCoefficients.back();
  for (size_t i = kCoefficients.size() - 1; i-- > 0;) {
    sum = sum * square + kCoefficients[i];
  }
  return y * sum;
}

inline double normal_double(const Words& w) {
  const double length = std::sqrt(2.0 * negative_log(uniform_above_zero(w[0], w[1])));
  const uint32_t quarter = w[2] >> 30;
  const double within = uniform_double(w[2] << 2, w[3]);
  const double size = length * sine((quarter & 1) != 0 ? 1.0 - within : within);
  return (quarter & 2) != 0 ? -size : size;
}

inline double cauchy_double(const Words& w) {
  const double y = uniform_double(w[0] << 1, w[1]);
  const double tangent = sine(y) / sine(1.0 - y);
  return (w[0] >> 31) != 0 ? -tangent : tangent;
}

inline double exp(double x) {
  x = std::min(std::max(x, -745.0), 710.0);
  const double scaled = x * 1.4426950408889634;
  const auto power = static_cast<int64_t>(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
  const double n = static_cast<double>(power);
  const double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  constexpr double kTerms[] = {
      1.0 / 6227020800.0,
      1.0 / 479001600.0,
      1.0 / 39916800.0,
      1.0 / 3628800.0,
      1.0 / 362880.0,
      1.0 / 40320.0,
      1.0 / 5040.0,
      1.0 / 720.0,
      1.0 / 120.0,
      1.0 / 24.0,
      1.0 / 6.0,
      1.0 / 2.0};
  double sum = 1.0 / 87178291200.0;
  for (const double term : kTerms) {
    sum = sum * r + term;
  }
  sum = ((sum * r) * r + r) + 1.0;
  const int64_t half = power >> 1;
  return (sum * std::bit_cast<double>((half + 1023) << 52)) *
      std::bit_cast<double>((power - half + 1023) << 52);
}

}  // namespace philox
}  // namespace tiny
