#include "portable_random.h"

#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/Parallel.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/ops/empty.h>

#include <map>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TINY_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define TINY_CLONES
#endif

namespace tiny {
namespace {

namespace templates = at::native::templates;

constexpr int kLanes = 16;
constexpr int64_t kGrain = 1 << 14;

struct Blocks {
  uint32_t word[4][kLanes];

  philox::Words of(int lane) const {
    return {word[0][lane], word[1][lane], word[2][lane], word[3][lane]};
  }
};

// The words of `kLanes` elements, round by round so that the compiler uses vectors.
TINY_CLONES void fill_blocks(const Draw& draw, uint64_t first, Blocks& out) {
  auto& c = out.word;
  for (int l = 0; l < kLanes; ++l) {
    c[0][l] = static_cast<uint32_t>(first + l);
    c[1][l] = static_cast<uint32_t>((first + l) >> 32);
    c[2][l] = static_cast<uint32_t>(draw.offset);
    c[3][l] = static_cast<uint32_t>(draw.offset >> 32);
  }
  auto key0 = static_cast<uint32_t>(draw.seed), key1 = static_cast<uint32_t>(draw.seed >> 32);
  for (int i = 0; i < 10; ++i) {
#pragma omp simd
    for (int l = 0; l < kLanes; ++l) {
      const uint64_t a = philox::kMultipliers[0] * c[0][l], b = philox::kMultipliers[1] * c[2][l];
      c[0][l] = static_cast<uint32_t>(b >> 32) ^ c[1][l] ^ key0;
      c[1][l] = static_cast<uint32_t>(b);
      c[2][l] = static_cast<uint32_t>(a >> 32) ^ c[3][l] ^ key1;
      c[3][l] = static_cast<uint32_t>(a);
    }
    key0 += philox::kWeyl[0];
    key1 += philox::kWeyl[1];
  }
}

// value(words, i) for the i-th element in the order of its indices, wherever it lies.
template <typename T, typename Value>
void fill(const at::Tensor& out, const Draw& draw, const Value& value) {
  const bool direct = out.is_cpu() && out.is_contiguous();
  const auto dense =
      direct ? out : at::empty(out.sizes(), at::device(at::kCPU).dtype(out.scalar_type()));
  auto* data = dense.mutable_data_ptr<T>();
  at::parallel_for(0, dense.numel(), kGrain, [&](int64_t begin, int64_t end) {
    Blocks blocks;
    for (auto i = begin; i < end; i += kLanes) {
      fill_blocks(draw, static_cast<uint64_t>(i), blocks);
      const auto count = static_cast<int>(std::min<int64_t>(kLanes, end - i));
      for (int l = 0; l < count; ++l) {
        data[i + l] = value(blocks.of(l), i + l);
      }
    }
  });
  if (!direct) {
    out.copy_(dense);
  }
}

template <typename T>
constexpr int kBits = std::is_same_v<T, at::Half> ? 11
    : std::is_same_v<T, at::BFloat16>             ? 8
                                                  : 24;

// Refuses a type in PyTorch's words.
void check_type(const at::Tensor& out, bool taken, const char* name) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      taken, '"', name, "\" not implemented for '", c10::toString(out.scalar_type()), "'");
}

// `body` gets the words and computes in float, or in double where the tensor holds doubles.
template <typename Body>
void fill_floats(const at::Tensor& out, const Draw& draw, const char* name, const Body& body) {
  check_type(out, out.is_floating_point() || out.is_complex(), name);
  const auto whole = out.is_complex() ? at::view_as_real(out) : out;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, whole.scalar_type(), "random", [&] {
    using Real = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
    fill<scalar_t>(whole, draw, [&](const philox::Words& words, int64_t /*i*/) {
      return static_cast<scalar_t>(
          body(words, Real{}, std::integral_constant<int, kBits<scalar_t>>{}));
    });
  });
}

template <typename Body>
void fill_numbers(const at::Tensor& out, const Draw& draw, const char* name, const Body& body) {
  check_type(out, !out.is_complex() && out.scalar_type() != at::kBool, name);
  AT_DISPATCH_V2(
      out.scalar_type(),
      "random",
      AT_WRAP([&] { fill<scalar_t>(out, draw, body.template operator()<scalar_t>()); }),
      AT_EXPAND(AT_ALL_TYPES),
      at::kHalf,
      at::kBFloat16);
}

template <typename Body>
void fill_all(const at::Tensor& out, const Draw& draw, const char* name, const Body& body) {
  if (out.scalar_type() == at::kBool) {
    return fill<bool>(out, draw, body.template operator()<bool>());
  }
  fill_numbers(out, draw, name, body);
}

// PyTorch's own checks, with a kernel that does nothing.
template <typename>
struct Nothing {
  template <typename... Given>
  void operator()(Given&&... /*given*/) const {}
};

template <bool kDouble>
auto standard_normal(const philox::Words& w) {
  if constexpr (kDouble) {
    return philox::normal_double(w);
  } else {
    return philox::normal(w[0], w[2]);
  }
}

template <bool kDouble>
auto standard_exponential(const philox::Words& w) {
  if constexpr (kDouble) {
    return philox::negative_log(philox::uniform_above_zero(w[0], w[1]));
  } else {
    return philox::exponential(w[0]);
  }
}

at::Tensor self_of(c10::ArrayRef<c10::IValue> arguments) {
  return arguments[0].toTensor();
}

double number(const c10::IValue& value) {
  return value.toScalar().toDouble();
}

// --- uniform_, normal_, ... : check, run ---

void check_uniform(c10::ArrayRef<c10::IValue> given) {
  auto self = self_of(given);
  templates::uniform_impl_<Nothing, void>(self, number(given[1]), number(given[2]), std::nullopt);
}

void uniform(const at::Tensor& self, const Draw& draw, double from, double to) {
  fill_floats(self, draw, "uniform_kernel_cpu", [&](const auto& w, auto real, auto bits) {
    using Real = decltype(real);
    const auto low = static_cast<Real>(from), width = static_cast<Real>(to) - low;
    if constexpr (std::is_same_v<Real, double>) {
      return philox::uniform_double(w[0], w[1]) * width + low;
    } else {
      return philox::uniform<decltype(bits)::value>(w[0]) * width + low;
    }
  });
}

void check_normal(c10::ArrayRef<c10::IValue> given) {
  auto self = self_of(given);
  TORCH_CHECK(
      number(given[2]) >= 0.0, "normal expects std >= 0.0, but found std ", number(given[2]));
}

void normal(const at::Tensor& self, const Draw& draw, double mean, double std) {
  if (self.is_complex()) {
    std /= std::sqrt(2);  // of the real and the imaginary part
  }
  fill_floats(self, draw, "normal_kernel_cpu", [&](const auto& w, auto real, auto /*bits*/) {
    using Real = decltype(real);
    return standard_normal<std::is_same_v<Real, double>>(w) * static_cast<Real>(std) +
        static_cast<Real>(mean);
  });
}

void check_log_normal(c10::ArrayRef<c10::IValue> given) {
  auto self = self_of(given);
  templates::log_normal_impl_<Nothing, void>(self, number(given[1]), number(given[2]), {});
}

void log_normal(const at::Tensor& self, const Draw& draw, double mean, double std) {
  fill_floats(self, draw, "log_normal_cpu", [&](const auto& w, auto real, auto /*bits*/) {
    using Real = decltype(real);
    return philox::exp(
        standard_normal<std::is_same_v<Real, double>>(w) * static_cast<Real>(std) +
        static_cast<Real>(mean));
  });
}

void check_exponential(c10::ArrayRef<c10::IValue> given) {
  auto self = self_of(given);
  templates::exponential_impl_<Nothing, void>(self, number(given[1]), {});
}

void exponential(const at::Tensor& self, const Draw& draw, double lambda, double /*none*/) {
  fill_floats(self, draw, "exponential_cpu", [&](const auto& w, auto real, auto /*bits*/) {
    using Real = decltype(real);
    return standard_exponential<std::is_same_v<Real, double>>(w) / static_cast<Real>(lambda);
  });
}

void check_cauchy(c10::ArrayRef<c10::IValue> given) {
  auto self = self_of(given);
  templates::cauchy_impl_<Nothing, void>(self, number(given[1]), number(given[2]), {});
}

void cauchy(const at::Tensor& self, const Draw& draw, double median, double sigma) {
  fill_floats(self, draw, "cauchy_cpu", [&](const auto& w, auto real, auto /*bits*/) {
    using Real = decltype(real);
    const auto scale = static_cast<Real>(sigma), middle = static_cast<Real>(median);
    if constexpr (std::is_same_v<Real, double>) {
      return philox::cauchy_double(w) * scale + middle;
    } else {
      return philox::cauchy(w[0]) * scale + middle;
    }
  });
}

void check_geometric(c10::ArrayRef<c10::IValue> given) {
  auto self = self_of(given);
  templates::geometric_impl_<Nothing, void>(self, number(given[1]), {});
}

void geometric(const at::Tensor& self, const Draw& draw, double p, double /*none*/) {
  const double unit = philox::negative_log(1.0 - p);
  fill_numbers(self, draw, "geometric_cpu", [&]<typename T>() {
    return [unit](const philox::Words& w, int64_t /*i*/) {
      if constexpr (std::is_same_v<T, double>) {
        return std::ceil(standard_exponential<true>(w) / unit);
      } else {
        const float trials = std::ceil(standard_exponential<false>(w) / static_cast<float>(unit));
        if constexpr (std::is_integral_v<T>) {
          return static_cast<T>(static_cast<int64_t>(trials));
        } else {
          return static_cast<T>(trials);
        }
      }
    };
  });
}

void check_bernoulli(c10::ArrayRef<c10::IValue> given) {
  auto self = self_of(given);
  templates::bernoulli_impl_<Nothing, void>(self, number(given[1]), std::nullopt);
}

void bernoulli(const at::Tensor& self, const Draw& draw, double p, double /*none*/) {
  fill_all(self, draw, "bernoulli_scalar_cpu_", [&]<typename T>() {
    return [p](const philox::Words& w, int64_t /*i*/) {
      return static_cast<T>(philox::uniform<24>(w[0]) < static_cast<float>(p));
    };
  });
}

void bernoulli_tensor(const at::Tensor& self, const Draw& draw, const at::Tensor& chances) {
  const auto given = chances.expand(self.sizes()).cpu();
  const bool is_double = given.scalar_type() == at::kDouble;
  const auto wide = given.to(at::kDouble).contiguous();
  const auto* p = wide.const_data_ptr<double>();
  const auto in_range = [](double one) { return one >= 0 && one <= 1; };
  TORCH_CHECK(
      std::all_of(p, p + wide.numel(), in_range),
      "Expected p_in >= 0 && p_in <= 1 to be true, but got false.");
  fill_all(self, draw, "bernoulli_tensor_cpu_self_", [&]<typename T>() {
    return [p, is_double](const philox::Words& w, int64_t i) {
      const double drawn =
          is_double ? philox::uniform_double(w[0], w[1]) : double{philox::uniform<24>(w[0])};
      return static_cast<T>(drawn < p[i]);
    };
  });
}

// --- integers ---

// Fills with `first` + a number below `range`; a range of 0 stands for 2^64.
void integers(const at::Tensor& self, const Draw& draw, uint64_t range, int64_t first) {
  fill_all(self, draw, "random_from_to_kernel_cpu", [&]<typename T>() {
    return [range, first](const philox::Words& w, int64_t /*i*/) {
      const auto drawn = philox::below(range, w[0], w[1]) + static_cast<uint64_t>(first);
      return static_cast<T>(static_cast<int64_t>(drawn));
    };
  });
}

thread_local Draw current_draw;

// PyTorch's checks of the bounds, and its range for each type.
template <typename>
struct FromTo {
  void operator()(
      at::TensorIteratorBase& iter, uint64_t range, int64_t from, auto&& /*none*/) const {
    integers(iter.tensor(0), current_draw, range, from);
  }
  void operator()(at::TensorIteratorBase& iter, auto&& /*none*/) const {
    integers(iter.tensor(0), current_draw, 0, 0);
  }
};

template <template <typename> class Kernel>
void from_to(at::Tensor self, int64_t from, std::optional<int64_t> to) {
  templates::random_from_to_impl<Kernel, void>(self, from, to, std::nullopt);
}

// [0, the largest value], or all integers that a float holds exactly.
void whole_range(const at::Tensor& self, const Draw& draw) {
  fill_all(self, draw, "random_kernel_cpu", [&]<typename T>() {
    uint64_t last = 1;
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      last = static_cast<uint64_t>(std::numeric_limits<T>::max());
    } else if constexpr (!std::is_same_v<T, bool>) {
      last = uint64_t{1} << std::numeric_limits<T>::digits;
    }
    return [last](const philox::Words& w, int64_t /*i*/) {
      return static_cast<T>(static_cast<int64_t>(philox::below(last + 1, w[0], w[1])));
    };
  });
}

// --- the table ---

using Fill = void (*)(const at::Tensor&, const Draw&, double, double);

// The tensor, `kCount` numbers and the draw are on the stack; the tensor stays.
template <Fill kFill, int kCount>
void run_fill(c10::Stack& stack, const Draw& draw) {
  const auto self = stack[0].toTensor();
  if (self.numel() > 0) {
    kFill(self, draw, number(stack[1]), kCount > 1 ? number(stack[2]) : 0.0);
  }
  stack = {self};
}

template <typename Body>
void keep_first(c10::Stack& stack, const Body& body) {
  const auto self = stack[0].toTensor();
  body(self);
  stack = {self};
}

void no_check(c10::ArrayRef<c10::IValue> /*given*/) {}

std::optional<int64_t> optional_int(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::optional(value.toInt());
}

const std::map<std::string, PortableKernel>& kernels() {
  static const auto* table = new std::map<std::string, PortableKernel>{
      {"aten::uniform_", {&check_uniform, &run_fill<&uniform, 2>}},
      {"aten::normal_", {&check_normal, &run_fill<&normal, 2>}},
      {"aten::log_normal_", {&check_log_normal, &run_fill<&log_normal, 2>}},
      {"aten::exponential_", {&check_exponential, &run_fill<&exponential, 1>}},
      {"aten::cauchy_", {&check_cauchy, &run_fill<&cauchy, 2>}},
      {"aten::geometric_", {&check_geometric, &run_fill<&geometric, 1>}},
      {"aten::bernoulli_.float", {&check_bernoulli, &run_fill<&bernoulli, 1>}},
      {"aten::bernoulli_.Tensor",
       {&no_check,
        [](c10::Stack& stack, const Draw& draw) {
          const auto chances = stack[1].toTensor();
          keep_first(stack, [&](const at::Tensor& self) { bernoulli_tensor(self, draw, chances); });
        }}},
      {"aten::random_",
       {&no_check,
        [](c10::Stack& stack, const Draw& draw) {
          keep_first(stack, [&](const at::Tensor& self) { whole_range(self, draw); });
        }}},
      {"aten::random_.to",
       {[](c10::ArrayRef<c10::IValue> given) {
          from_to<Nothing>(self_of(given), 0, given[1].toInt());
        },
        [](c10::Stack& stack, const Draw& draw) {
          current_draw = draw;
          const auto to = stack[1].toInt();
          keep_first(stack, [&](const at::Tensor& self) { from_to<FromTo>(self, 0, to); });
        }}},
      {"aten::random_.from",
       {[](c10::ArrayRef<c10::IValue> given) {
          from_to<Nothing>(self_of(given), given[1].toInt(), optional_int(given[2]));
        },
        [](c10::Stack& stack, const Draw& draw) {
          current_draw = draw;
          const auto from = stack[1].toInt();
          const auto to = optional_int(stack[2]);
          keep_first(stack, [&](const at::Tensor& self) { from_to<FromTo>(self, from, to); });
        }}},
  };
  return *table;
}

}  // namespace

const PortableKernel* portable_kernel(const std::string& name) {
  const auto found = kernels().find(name);
  return found == kernels().end() ? nullptr : &found->second;
}

}  // namespace tiny
