// Groups of threads on the CPU: a fiber for each thread, which switches at barriers.
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <vector>

extern "C" {
unsigned emulated_group[3], emulated_thread[3];
}

namespace {

constexpr size_t kStack = 256 << 10;

struct Fiber {
  jmp_buf at;
  ucontext_t start;
  char *stack = nullptr;
  bool begun = false, done = false;
  int line = 0;
};

std::vector<Fiber> fibers;
size_t current;
jmp_buf scheduler;
ucontext_t first_scheduler;
void (*running)(void **);
void **given;

void start() {
  running(given);
  fibers[current].done = true;
  _longjmp(scheduler, 1);
}

void resume(Fiber &one) {
  if (_setjmp(scheduler)) return;
  if (one.begun) _longjmp(one.at, 1);
  one.begun = true;
  getcontext(&one.start);
  one.start.uc_stack.ss_sp = one.stack;
  one.start.uc_stack.ss_size = kStack;
  makecontext(&one.start, start, 0);
  setcontext(&one.start);
}

void number(size_t i, const unsigned *threads) {
  emulated_thread[0] = i % threads[0];
  emulated_thread[1] = i / threads[0] % threads[1];
  emulated_thread[2] = i / threads[0] / threads[1];
}

const char *group_with_barriers(size_t count, const unsigned *threads) {
  if (fibers.size() < count) fibers.resize(count);
  for (size_t i = 0; i < count; i++) {
    if (!fibers[i].stack) fibers[i].stack = (char *)malloc(kStack);
    fibers[i].begun = fibers[i].done = false;
  }
  for (bool any = true; any;) {
    any = false;
    bool left = false;
    int line = -1;
    // Backwards: what happens to be right when threads run in order should fail.
    for (size_t i = count; i-- > 0;) {
      if (fibers[i].done) continue;
      current = i;
      number(i, threads);
      resume(fibers[i]);
      if (fibers[i].done) {
        left = true;
        continue;
      }
      if (any && line != fibers[i].line) return "threads of a group wait at different barriers";
      line = fibers[i].line;
      any = true;
    }
    if (left && any) return "a thread left while others wait at a barrier";
  }
  return nullptr;
}

}  // namespace

extern "C" {

void emulated_barrier(int line) {
  Fiber &me = fibers[current];
  me.line = line;
  if (!_setjmp(me.at)) _longjmp(scheduler, 1);
}

// What is wrong, or nothing.
const char *emulated_launch(void (*kernel)(void **), void **buffers, const unsigned *groups, const unsigned *threads,
                            int has_barriers) {
  running = kernel;
  given = buffers;
  size_t count = (size_t)threads[0] * threads[1] * threads[2];
  for (unsigned z = groups[2]; z-- > 0;)
    for (unsigned y = groups[1]; y-- > 0;)
      for (unsigned x = groups[0]; x-- > 0;) {
        emulated_group[0] = x, emulated_group[1] = y, emulated_group[2] = z;
        if (has_barriers) {
          if (const char *wrong = group_with_barriers(count, threads)) return wrong;
          continue;
        }
        for (size_t i = count; i-- > 0;) {
          number(i, threads);
          kernel(buffers);
        }
      }
  return nullptr;
}

unsigned __ockl_get_group_id(size_t i) { return emulated_group[i]; }
unsigned __ockl_get_local_id(size_t i) { return emulated_thread[i]; }

// ROCm's device library.
#define UNARY(name)                                     \
  float __ocml_##name##_f32(float x) { return name##f(x); } \
  double __ocml_##name##_f64(double x) { return name(x); }
#define BINARY(name)                                                  \
  float __ocml_##name##_f32(float x, float y) { return name##f(x, y); } \
  double __ocml_##name##_f64(double x, double y) { return name(x, y); }
UNARY(acos) UNARY(acosh) UNARY(asin) UNARY(asinh) UNARY(atan) UNARY(atanh) UNARY(cbrt) UNARY(ceil)
UNARY(cos) UNARY(cosh) UNARY(erf) UNARY(erfc) UNARY(exp) UNARY(exp10) UNARY(exp2) UNARY(expm1)
UNARY(fabs) UNARY(floor) UNARY(lgamma) UNARY(log) UNARY(log10) UNARY(log1p) UNARY(log2) UNARY(logb)
UNARY(nearbyint) UNARY(rint) UNARY(round) UNARY(sin) UNARY(sinh) UNARY(sqrt) UNARY(tan) UNARY(tanh)
UNARY(tgamma) UNARY(trunc) UNARY(j0) UNARY(j1) UNARY(y0) UNARY(y1)
BINARY(atan2) BINARY(copysign) BINARY(fdim) BINARY(fmod) BINARY(hypot) BINARY(nextafter) BINARY(pow)
BINARY(remainder)
}
