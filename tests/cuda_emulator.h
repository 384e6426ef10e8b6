// Runs CUDA kernels on the CPU: a fiber per thread, which switches at barriers and shuffles.
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(n)
#define int8_t emulated_int8_t
#define uint8_t emulated_uint8_t
#define int16_t emulated_int16_t
#define uint16_t emulated_uint16_t
#define int32_t emulated_int32_t
#define uint32_t emulated_uint32_t
#define int64_t emulated_int64_t
#define uint64_t emulated_uint64_t

struct emulated_index {
  unsigned x, y, z;
};
static emulated_index threadIdx, blockIdx;

struct emulated_fiber {
  ucontext_t context;
  std::vector<char> stack;
  emulated_index index;
  const char *waits_at = nullptr;
  bool done = false;
  unsigned long long shuffled = 0;
};
static std::vector<emulated_fiber> emulated_fibers;
static size_t emulated_current;
static ucontext_t emulated_scheduler;
static std::function<void()> emulated_kernel;

static void emulated_wait(const char *where) {
  emulated_fiber &me = emulated_fibers[emulated_current];
  me.waits_at = where;
  swapcontext(&me.context, &emulated_scheduler);
}
#define __syncthreads() emulated_wait("block")
#define __syncwarp() emulated_wait("warp")

template <class T>
T __shfl_xor_sync(unsigned, T x, int by) {
  size_t me = emulated_current;
  std::memcpy(&emulated_fibers[me].shuffled, &x, sizeof(T));
  emulated_wait("shuffle");
  T other;
  std::memcpy(&other, &emulated_fibers[me ^ by].shuffled, sizeof(T));
  emulated_wait("shuffled");
  return other;
}

static void emulated_start() {
  emulated_kernel();
  emulated_fibers[emulated_current].done = true;
  swapcontext(&emulated_fibers[emulated_current].context, &emulated_scheduler);
}

static void emulated_block(emulated_index block) {
  emulated_fibers.clear();
  emulated_fibers.resize(block.x * block.y * block.z);
  for (size_t i = 0; i < emulated_fibers.size(); i++) {
    emulated_fiber &one = emulated_fibers[i];
    one.stack.resize(32768);
    one.index = {unsigned(i % block.x), unsigned(i / block.x), 0};
    getcontext(&one.context);
    one.context.uc_stack.ss_sp = one.stack.data();
    one.context.uc_stack.ss_size = one.stack.size();
    makecontext(&one.context, emulated_start, 0);
  }
  for (bool any = true; any;) {
    any = false;
    const char *where = nullptr;
    bool left = false;
    // Backwards: what happens to be right when threads run in order should fail.
    for (size_t i = emulated_fibers.size(); i-- > 0;) {
      emulated_fiber &one = emulated_fibers[i];
      if (one.done) continue;
      emulated_current = i;
      threadIdx = one.index;
      swapcontext(&emulated_scheduler, &one.context);
      if (one.done) {
        left = true;
        continue;
      }
      if (where && std::strcmp(where, one.waits_at)) std::fputs("threads diverge\n", stderr), std::abort();
      where = one.waits_at;
      any = true;
    }
    if (left && where && !std::strcmp(where, "block"))
      std::fputs("threads left before a barrier\n", stderr), std::abort();
  }
}

static void emulated_launch(emulated_index grid, emulated_index block) {
  for (unsigned y = 0; y < grid.y; y++)
    for (unsigned x = 0; x < grid.x; x++) {
      blockIdx = {x, y, 0};
      emulated_block(block);
    }
}

static int __float_as_int(float x) {
  int bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
static float __int_as_float(int bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
static double __longlong_as_double(long long bits) {
  double x;
  std::memcpy(&x, &bits, 8);
  return x;
}
static unsigned short emulated_to_half(float value) {
  unsigned all = __float_as_int(value), bits = all & 0x7fffffff;
  unsigned normal = (bits + 0xc8000fff + (bits >> 13 & 1)) >> 13;
  float tiny = __int_as_float(bits) + __int_as_float(126u << 23);
  unsigned half = bits < 113u << 23 ? __float_as_int(tiny) - (126u << 23) : normal;
  half = bits >= 143u << 23 ? (bits > 255u << 23 ? 0x7e00 : 0x7c00) : half;
  return half | (all >> 16 & 0x8000);
}
static float emulated_from_half(unsigned short half) {
  int exponent = half >> 10 & 31, fraction = half & 1023;
  float value = exponent == 31  ? (fraction ? NAN : INFINITY)
                : exponent == 0 ? std::ldexp((float)fraction, -24)
                                : std::ldexp((float)(fraction + 1024), exponent - 25);
  return half & 0x8000 ? -value : value;
}
