#include "flags.h"

#include <ATen/Context.h>

#include <array>
#include <atomic>
#include <mutex>
#include <type_traits>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace tiny {
namespace {

using at::Context;

// Whether this thread flushes denormal numbers to zero, in the bits that the processor has for it.
#if defined(__SSE__)
constexpr uint32_t kDenormals = 0x8040;
uint32_t denormals() {
  return _mm_getcsr() & kDenormals;
}
void set_denormals(uint32_t bits) {
  _mm_setcsr((_mm_getcsr() & ~kDenormals) | bits);
}
#elif defined(__aarch64__)
constexpr uint32_t kDenormals = 1U << 24;
uint64_t control() {
  uint64_t word = 0;
  asm volatile("mrs %0, fpcr" : "=r"(word));
  return word;
}
uint32_t denormals() {
  return static_cast<uint32_t>(control()) & kDenormals;
}
void set_denormals(uint32_t bits) {
  asm volatile("msr fpcr, %0" : : "r"((control() & ~uint64_t{kDenormals}) | bits));
}
#else
constexpr uint32_t kDenormals = 0;
uint32_t denormals() {
  return 0;
}
void set_denormals(uint32_t /*bits*/) {}
#endif

struct Switch {
  bool (Context::*get)() const;
  void (Context::*set)(bool);
};

// Bits that the processor's have to stay clear of.
enum : uint32_t { kDeterministic = 1, kWarnsOnly = 2, kFills = 4, kMkldnn = 8, kCudnn = 16 };

uint32_t usual_now() {
  const auto& context = at::globalContext();
  return denormals() | (context.deterministicAlgorithms() ? kDeterministic : 0) |
      (context.deterministicAlgorithmsWarnOnly() ? kWarnsOnly : 0) |
      (context.deterministicFillUninitializedMemory() ? kFills : 0) |
      (context.userEnabledMkldnn() ? kMkldnn : 0) | (context.userEnabledCuDNN() ? kCudnn : 0);
}

void set_usual(uint32_t bits) {
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms((bits & kDeterministic) != 0, (bits & kWarnsOnly) != 0);
  context.setDeterministicFillUninitializedMemory((bits & kFills) != 0);
  context.setUserEnabledMkldnn((bits & kMkldnn) != 0);
  context.setUserEnabledCuDNN((bits & kCudnn) != 0);
}

constexpr std::array kSwitches = {
    Switch{&Context::benchmarkCuDNN, &Context::setBenchmarkCuDNN},
    Switch{&Context::deterministicCuDNN, &Context::setDeterministicCuDNN},
    Switch{&Context::deterministicMkldnn, &Context::setDeterministicMkldnn},
    Switch{&Context::userEnabledFlashSDP, &Context::setSDPUseFlash},
    Switch{&Context::userEnabledMemEfficientSDP, &Context::setSDPUseMemEfficient},
    Switch{&Context::userEnabledMathSDP, &Context::setSDPUseMath},
    Switch{&Context::userEnabledCuDNNSDP, &Context::setSDPUseCuDNN},
    Switch{&Context::allowFP16BF16ReductionMathSDP, &Context::setAllowFP16BF16ReductionMathSDP},
    Switch{&Context::allowFP16AccumulationCuBLAS, &Context::setAllowFP16AccumulationCuBLAS},
    Switch{&Context::allowFP16ReductionCPU, &Context::setAllowFP16ReductionCPU},
};

// How exact products of floats are. What is set for one library hides what is set for all of them,
// and older switches have to agree with newer ones, so it is all put back as it was, member by
// member: PyTorch's functions cannot tell whether something was set. An explicit instantiation may
// name what is private.
template <typename Tag, auto kMember>
struct Reveal {
  friend constexpr auto member(Tag) {
    return kMember;
  }
};
struct Precisions {
  friend constexpr auto member(Precisions);
};
struct MatmulPrecision {
  friend constexpr auto member(MatmulPrecision);
};
struct CudnnTf32 {
  friend constexpr auto member(CudnnTf32);
};
struct OnednnTf32 {
  friend constexpr auto member(OnednnTf32);
};
template struct Reveal<Precisions, &Context::fp32_precision>;
template struct Reveal<MatmulPrecision, &Context::float32_matmul_precision>;
template struct Reveal<CudnnTf32, &Context::allow_tf32_cudnn>;
template struct Reveal<OnednnTf32, &Context::allow_tf32_onednn>;

// Of a table whose entries are always the same ones, or tables.
template <typename Table, typename Visit>
void for_each_precision(Table& table, const Visit& visit) {
  for (auto& [key, value] : table) {
    if constexpr (std::is_enum_v<std::decay_t<decltype(value)>>) {
      visit(value);
    } else {
      for_each_precision(value, visit);
    }
  }
}

constexpr int kBitsOfPrecision = 3;
constexpr int kBitsOfMatmul = 2;
constexpr int kBitsOfReduction = 2;
constexpr int kBitsOfLinalg = 3;

// The reduced sums of cuBLAS, as they are set: whether allowed, and in parts.
using Reduction = at::CuBLASReductionOption;
struct Reductions {
  Reduction (Context::*get)() const;
  void (Context::*set)(bool, bool);
};
constexpr std::array kReductions = {
    Reductions{&Context::allowFP16ReductionCuBLAS, &Context::setAllowFP16ReductionCuBLAS},
    Reductions{&Context::allowBF16ReductionCuBLAS, &Context::setAllowBF16ReductionCuBLAS},
};

// Calls `visit` with each special flag's bits, and what reads and writes it.
template <typename Visit>
void for_each_special(Context& context, const Visit& visit) {
  const auto member_as = [&](int bits, auto& value) {
    using Value = std::decay_t<decltype(value)>;
    visit(
        bits,
        [&] { return static_cast<uint64_t>(value); },
        [&](uint64_t field) { value = static_cast<Value>(field); });
  };
  for (const auto& one : kSwitches) {
    visit(
        1,
        [&] { return static_cast<uint64_t>((context.*one.get)()); },
        [&](uint64_t field) { (context.*one.set)(field != 0); });
  }
  for (const auto& one : kReductions) {
    visit(
        kBitsOfReduction,
        [&] { return static_cast<uint64_t>((context.*one.get)()); },
        [&](uint64_t field) {
          const auto option = static_cast<Reduction>(field);
          (context.*one.set)(
              option == Reduction::AllowReducedPrecisionWithSplitK,
              option != Reduction::DisallowReducedPrecisionDisallowSplitK);
        });
  }
  visit(
      kBitsOfLinalg,
      [&] { return static_cast<uint64_t>(context.linalgPreferredBackend()); },
      [&](uint64_t field) {
        context.setLinalgPreferredBackend(static_cast<at::LinalgBackend>(field));
      });
  member_as(kBitsOfMatmul, context.*member(MatmulPrecision{}));
  member_as(1, context.*member(CudnnTf32{}));
  member_as(1, context.*member(OnednnTf32{}));
  for_each_precision(
      context.*member(Precisions{}), [&](auto& value) { member_as(kBitsOfPrecision, value); });
}

uint64_t special_now() {
  uint64_t word = 0;
  int place = 0;
  for_each_special(at::globalContext(), [&](int bits, const auto& get, const auto& /*set*/) {
    word |= get() << place;
    place += bits;
  });
  return word | uint64_t{1} << 63;  // never 0
}

void set_special(uint64_t word) {
  for_each_special(at::globalContext(), [&](int bits, const auto& get, const auto& set) {
    const auto field = word & ((uint64_t{1} << bits) - 1);
    if (get() != field) {
      set(field);
    }
    word >>= bits;
  });
}

// What the program has set, while a run sees something else. One run at a time does.
struct Replaced {
  std::recursive_mutex runs;
  int depth = 0;
  std::mutex mutex;  // guards the next two
  Flags programs;
  std::atomic<uint64_t> changes{0};  // to others and back: odd while there are others
};

Replaced& replaced() {
  static auto* state = new Replaced;
  return *state;
}

std::atomic<uint64_t>& changes = replaced().changes;

bool are_replaced(uint64_t change) {
  return change % 2 != 0;
}

}  // namespace

// A run may replace them while they are read: then they are read again.
Flags flags_now(bool with_special) {
  for (;;) {
    const auto before = changes.load(std::memory_order_acquire);
    if (C10_UNLIKELY(are_replaced(before))) {
      std::lock_guard lock(replaced().mutex);
      if (are_replaced(changes.load())) {
        const auto& programs = replaced().programs;
        return {programs.usual | denormals(), with_special ? programs.special : 0};
      }
      continue;
    }
    const Flags flags{usual_now(), with_special ? special_now() : 0};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (C10_LIKELY(changes.load(std::memory_order_relaxed) == before)) {
      return flags;
    }
  }
}

WithFlags::WithFlags(const Flags& flags)
    : before_{usual_now(), flags.special == 0 ? 0 : special_now()} {
  if (C10_LIKELY(flags == before_)) {
    return;
  }
  const auto denormals_before = before_.usual & kDenormals;
  set_denormals(flags.usual & kDenormals);
  if ((flags.usual ^ before_.usual) == ((flags.usual ^ before_.usual) & kDenormals) &&
      flags.special == before_.special) {
    return;  // those are this thread's own
  }
  auto& state = replaced();
  state.runs.lock();
  has_replaced_ = true;
  // Those that another run has replaced are what the program has set again.
  before_ = {
      (usual_now() & ~kDenormals) | denormals_before, flags.special == 0 ? 0 : special_now()};
  if (state.depth++ == 0) {
    std::lock_guard lock(state.mutex);
    state.programs = {usual_now() & ~kDenormals, special_now()};
    ++state.changes;
  }
  set_usual(flags.usual);
  if (flags.special != 0) {
    set_special(flags.special);
  }
}

WithFlags::~WithFlags() {
  set_denormals(before_.usual & kDenormals);
  if (C10_LIKELY(!has_replaced_)) {
    return;
  }
  auto& state = replaced();
  {
    std::lock_guard lock(state.mutex);
    set_usual(before_.usual);
    if (before_.special != 0) {
      set_special(before_.special);
    }
    if (--state.depth == 0) {
      ++state.changes;
    }
  }
  state.runs.unlock();
}

}  // namespace tiny
