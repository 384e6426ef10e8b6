#include "base/flags.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarTypeToTypeMeta.h>

#include <array>
#include <atomic>
#include <mutex>
#include <type_traits>
#include <vector>

#include "base/device.h"

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

enum : uint32_t { kDeterministic = 1, kWarnsOnly = 2, kFills = 4, kMkldnn = 8, kCudnn = 16 };
constexpr int kDefaultTypeAt = 8;
constexpr uint32_t kDefaultType = 0xFFU << kDefaultTypeAt;

c10::ScalarType default_type_in(uint32_t bits) {
  return static_cast<c10::ScalarType>((bits & kDefaultType) >> kDefaultTypeAt);
}

uint32_t usual_now() {
  const auto& context = at::globalContext();
  return (context.deterministicAlgorithms() ? kDeterministic : 0) |
      (context.deterministicAlgorithmsWarnOnly() ? kWarnsOnly : 0) |
      (context.deterministicFillUninitializedMemory() ? kFills : 0) |
      (context.userEnabledMkldnn() ? kMkldnn : 0) | (context.userEnabledCuDNN() ? kCudnn : 0) |
      static_cast<uint32_t>(c10::get_default_dtype_as_scalartype()) << kDefaultTypeAt;
}

void set_usual(uint32_t bits) {
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms((bits & kDeterministic) != 0, (bits & kWarnsOnly) != 0);
  context.setDeterministicFillUninitializedMemory((bits & kFills) != 0);
  context.setUserEnabledMkldnn((bits & kMkldnn) != 0);
  context.setUserEnabledCuDNN((bits & kCudnn) != 0);
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(default_type_in(bits)));
}

constexpr std::array kOfProducts = {
    Switch{&Context::benchmarkCuDNN, &Context::setBenchmarkCuDNN},
    Switch{&Context::deterministicCuDNN, &Context::setDeterministicCuDNN},
    Switch{&Context::deterministicMkldnn, &Context::setDeterministicMkldnn},
    Switch{&Context::userEnabledNNPACK, &Context::setUserEnabledNNPACK},
    Switch{&Context::allowFP16AccumulationCuBLAS, &Context::setAllowFP16AccumulationCuBLAS},
    Switch{&Context::allowFP16ReductionCPU, &Context::setAllowFP16ReductionCPU},
};

constexpr std::array kOfAttention = {
    Switch{&Context::userEnabledFlashSDP, &Context::setSDPUseFlash},
    Switch{&Context::userEnabledMemEfficientSDP, &Context::setSDPUseMemEfficient},
    Switch{&Context::userEnabledMathSDP, &Context::setSDPUseMath},
    Switch{&Context::userEnabledCuDNNSDP, &Context::setSDPUseCuDNN},
    Switch{&Context::allowFP16BF16ReductionMathSDP, &Context::setAllowFP16BF16ReductionMathSDP},
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
struct PreferredBlas {
  friend constexpr auto member(PreferredBlas);
};
template struct Reveal<Precisions, &Context::fp32_precision>;
template struct Reveal<MatmulPrecision, &Context::float32_matmul_precision>;
template struct Reveal<CudnnTf32, &Context::allow_tf32_cudnn>;
template struct Reveal<OnednnTf32, &Context::allow_tf32_onednn>;
template struct Reveal<PreferredBlas, &Context::blas_preferred_backend>;

// The entries of a table, which are always the same ones, or tables. Its nodes stay where they are.
template <typename Table>
auto& precisions_of(Table& table) {
  static const auto* found = [&] {
    auto* places = new std::vector<at::Float32Precision*>;
    const auto visit = [&](auto& self, auto& part) -> void {
      for (auto& [key, value] : part) {
        if constexpr (std::is_enum_v<std::decay_t<decltype(value)>>) {
          places->push_back(&value);
        } else {
          self(self, value);
        }
      }
    };
    visit(visit, table);
    return places;
  }();
  return *found;
}

constexpr int kBitsOfPrecision = 3;
constexpr int kBitsOfMatmul = 2;
constexpr int kBitsOfReduction = 2;
constexpr int kBitsOfLibrary = 3;

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

// Calls `visit` with a switch's bits, and what reads and writes it.
template <typename Switches, typename Visit>
void for_each_switch(Context& context, const Switches& switches, const Visit& visit) {
  for (const auto& one : switches) {
    visit(
        1,
        [&] { return static_cast<uint64_t>((context.*one.get)()); },
        [&](uint64_t field) { (context.*one.set)(field != 0); });
  }
}

template <typename Visit>
void for_each_of_attention(Context& context, const Visit& visit) {
  for_each_switch(context, kOfAttention, visit);
}

template <typename Visit>
void for_each_of_products(Context& context, const Visit& visit) {
  const auto member_as = [&](int bits, auto& value) {
    using Value = std::decay_t<decltype(value)>;
    visit(
        bits,
        [&] { return static_cast<uint64_t>(value); },
        [&](uint64_t field) { value = static_cast<Value>(field); });
  };
  for_each_switch(context, kOfProducts, visit);
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
      kBitsOfLibrary,
      [&] { return static_cast<uint64_t>(context.linalgPreferredBackend()); },
      [&](uint64_t field) {
        context.setLinalgPreferredBackend(static_cast<at::LinalgBackend>(field));
      });
  member_as(kBitsOfMatmul, context.*member(MatmulPrecision{}));
  member_as(kBitsOfLibrary, context.*member(PreferredBlas{}));
  member_as(1, context.*member(CudnnTf32{}));
  member_as(1, context.*member(OnednnTf32{}));
  for (auto* precision : precisions_of(context.*member(Precisions{}))) {
    member_as(kBitsOfPrecision, *precision);
  }
}

template <typename ForEach>
uint64_t read(const ForEach& for_each) {
  uint64_t word = 0;
  int place = 0;
  for_each(at::globalContext(), [&](int bits, const auto& get, const auto& /*set*/) {
    word |= get() << place;
    place += bits;
  });
  return word | uint64_t{1} << 63;  // never 0
}

// Sets what differs from `before`, but for what somebody else has changed from that.
template <typename ForEach>
void write(const ForEach& for_each, uint64_t word, uint64_t before) {
  for_each(at::globalContext(), [&](int bits, const auto& get, const auto& set) {
    const auto mask = (uint64_t{1} << bits) - 1;
    if ((word & mask) != (before & mask) && get() == (before & mask)) {
      set(word & mask);
    }
    word >>= bits;
    before >>= bits;
  });
}

constexpr auto of_products = [](Context& context, const auto& visit) {
  for_each_of_products(context, visit);
};
constexpr auto of_attention = [](Context& context, const auto& visit) {
  for_each_of_attention(context, visit);
};

Flags visible_now(bool products, bool attention) {
  return {
      denormals(),
      usual_now(),
      products ? read(of_products) : 0,
      attention ? read(of_attention) : 0};
}

// As `write`; the denormals are left alone.
void change(const Flags& to, const Flags& from) {
  const auto whole = [](uint32_t bits) {  // a type is one thing, not eight
    return (bits & kDefaultType) != 0 ? bits | kDefaultType : bits;
  };
  const auto now = usual_now();
  const auto mine = whole(to.usual ^ from.usual) & ~whole(now ^ from.usual);
  if (mine != 0) {
    set_usual((now & ~mine) | (to.usual & mine));
  }
  if (to.products != 0) {
    write(of_products, to.products, from.products);
  }
  if (to.attention != 0) {
    write(of_attention, to.attention, from.attention);
  }
}

// What the program has set, while a run sees something else.
struct Replaced {
  std::mutex mutex;  // guards the next two
  int depth = 0;
  Flags programs;
  std::atomic<uint64_t> changes{0};  // to others and back: odd while there are others
};

Replaced& replaced() {
  static auto* state = new Replaced;
  return *state;
}

std::atomic<uint64_t>& changes = replaced().changes;
thread_local int replaced_here = 0;  // by runs of this thread, whose kernels go by what they see

bool are_replaced(uint64_t change) {
  return change % 2 != 0;
}

}  // namespace

// A run may replace them while they are read: then they are read again.
Flags flags_now(uint8_t asks) {
  const bool products = (asks & kAsksProducts) != 0;
  const bool attention = (asks & kAsksAttention) != 0;
  for (;;) {
    const auto before = changes.load(std::memory_order_acquire);
    if (C10_UNLIKELY(are_replaced(before)) && replaced_here == 0) {
      std::lock_guard lock(replaced().mutex);
      if (are_replaced(changes.load())) {
        const auto& programs = replaced().programs;
        return {
            denormals(),
            programs.usual,
            products ? programs.products : 0,
            attention ? programs.attention : 0};
      }
      continue;
    }
    const auto flags = visible_now(products, attention);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (C10_LIKELY(changes.load(std::memory_order_relaxed) == before)) {
      return flags;
    }
  }
}

c10::ScalarType default_type_now() {
  for (;;) {
    const auto before = changes.load(std::memory_order_acquire);
    if (C10_UNLIKELY(are_replaced(before))) {
      return default_type_in(flags_now(kAsksNothing).usual);
    }
    const auto type = c10::get_default_dtype_as_scalartype();
    std::atomic_thread_fence(std::memory_order_acquire);
    if (C10_LIKELY(changes.load(std::memory_order_relaxed) == before)) {
      return type;
    }
  }
}

void default_type_was_set(c10::ScalarType type) {
  if (in_bad_fork()) {
    return;  // a thread that stayed behind may have the lock
  }
  auto& state = replaced();
  std::lock_guard lock(state.mutex);
  if (state.depth != 0) {
    auto& usual = state.programs.usual;
    usual = (usual & ~kDefaultType) | (static_cast<uint32_t>(type) << kDefaultTypeAt);
  } else if (c10::get_default_dtype_as_scalartype() != type) {
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(type));  // a run has put back the old one
  }
}

bool have_to_be_replaced(const Flags& flags) {
  const uint8_t asks = (flags.products != 0 ? kAsksProducts : kAsksNothing) |
      (flags.attention != 0 ? kAsksAttention : kAsksNothing);
  auto now = flags_now(asks);
  now.denormals = flags.denormals;  // which can be changed at any time
  return now != flags;
}

WithFlags::WithFlags(const Flags& flags)
    : given_(flags), before_(visible_now(flags.products != 0, flags.attention != 0)) {
  set_denormals(given_.denormals);
  auto there = before_;
  there.denormals = given_.denormals;
  if (C10_LIKELY(there == given_)) {
    return;
  }
  auto& state = replaced();
  std::lock_guard lock(state.mutex);
  if (state.depth == 0) {
    state.programs = visible_now(true, true);
    ++state.changes;
  }
  ++state.depth;
  ++replaced_here;
  has_replaced_ = true;
  change(given_, before_);
}

WithFlags::~WithFlags() {
  set_denormals(before_.denormals);
  if (C10_LIKELY(!has_replaced_)) {
    return;
  }
  auto& state = replaced();
  std::lock_guard lock(state.mutex);
  auto back = before_;
  if (state.depth == 1) {  // the program may have set what was given
    back.usual = (back.usual & ~kDefaultType) | (state.programs.usual & kDefaultType);
  }
  change(back, given_);
  --replaced_here;
  if (--state.depth == 0) {
    ++state.changes;
  }
}

}  // namespace tiny
