#include "random/portable_random.h"

#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/Parallel.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/empty.h>

#include <map>

#include "random/cuda_draws.h"
#include "random/draws.h"

namespace tiny {
namespace {

namespace templates = at::native::templates;

constexpr int64_t kGrain = 1 << 14;

// A tensor of the same sizes that elements can be written to in the order of their indices.
class Dense {
 public:
  explicit Dense(const at::Tensor& out)
      : out_(out), dense_(out.is_contiguous() ? out : at::empty(out.sizes(), out.options())) {}

  // body(first, count, blocks) for up to kLanes elements at a time, on all threads.
  template <typename Body>
  void fill(const Draw& draw, const Body& body) {
    at::parallel_for(0, dense_.numel(), kGrain, [&](int64_t begin, int64_t end) {
      Blocks blocks;
      for (auto i = begin; i < end; i += kLanes) {
        fill_blocks(draw, static_cast<uint64_t>(i), blocks);
        body(i, static_cast<int>(std::min<int64_t>(kLanes, end - i)), blocks);
      }
    });
    if (!dense_.is_same(out_)) {
      out_.copy_(dense_);
    }
  }
  template <typename T>
  T* data() {
    return dense_.mutable_data_ptr<T>();
  }

 private:
  const at::Tensor& out_;
  at::Tensor dense_;
};

template <typename T>
constexpr int kBits = std::is_same_v<T, at::Half> ? 11
    : std::is_same_v<T, at::BFloat16>             ? 8
                                                  : 24;

// Refuses a type in PyTorch's words.
void check_taken(const at::Tensor& out, bool taken, const char* name) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      taken, '"', name, "\" not implemented for '", c10::toString(out.scalar_type()), "'");
}

int bits_of(c10::ScalarType type) {
  return type == at::kHalf ? kBits<at::Half> : type == at::kBFloat16 ? kBits<at::BFloat16> : 24;
}

// A kernel of a GPU that computes in double where the tensor holds doubles, else in float.
void fill_on_gpu(
    const char* kernel, const at::Tensor& out, const Draw& draw, double a, double b = 0) {
  const bool is_double = out.scalar_type() == at::kDouble;
  DrawNumbers numbers;
  numbers.a = a;
  numbers.b = b;
  numbers.bits = bits_of(out.scalar_type());
  draw_on_gpu(
      std::string(kernel) + (is_double ? "_double" : "_float"),
      is_double ? at::kDouble : at::kFloat,
      out,
      draw,
      numbers);
}

// after(x) of standard numbers, computed in double where the tensor holds doubles, else in float.
template <typename After>
void fill_floats(const at::Tensor& whole, const Draw& draw, Standard which, const After& after) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, whole.scalar_type(), "random", [&] {
    Dense dense(whole);
    auto* data = dense.data<scalar_t>();
    dense.fill(draw, [&](int64_t first, int count, const Blocks& blocks) {
      if constexpr (std::is_same_v<scalar_t, double>) {
        for (int l = 0; l < count; ++l) {
          data[first + l] = after(standard_double(which, blocks.of(l)));
        }
      } else {
        float numbers[kLanes];
        standard_floats(which, kBits<scalar_t>, blocks, numbers);
        for (int l = 0; l < count; ++l) {
          data[first + l] = static_cast<scalar_t>(after(numbers[l]));
        }
      }
    });
  });
}

// body.operator()<T>() gives a function of the words and the index.
template <typename T, typename Body>
void fill_type(const at::Tensor& out, const Draw& draw, const Body& body) {
  Dense dense(out);
  auto* data = dense.data<T>();
  const auto value = body.template operator()<T>();
  dense.fill(draw, [&](int64_t first, int count, const Blocks& blocks) {
    for (int l = 0; l < count; ++l) {
      data[first + l] = value(blocks.of(l), first + l);
    }
  });
}

bool is_number(const at::Tensor& out) {
  return !out.is_complex() && out.scalar_type() != at::kBool;
}

template <typename Body>
void fill_numbers(const at::Tensor& out, const Draw& draw, const char* name, const Body& body) {
  check_taken(out, is_number(out), name);
  AT_DISPATCH_V2(
      out.scalar_type(),
      "random",
      AT_WRAP([&] { fill_type<scalar_t>(out, draw, body); }),
      AT_EXPAND(AT_ALL_TYPES),
      at::kHalf,
      at::kBFloat16);
}

template <typename Body>
void fill_all(const at::Tensor& out, const Draw& draw, const char* name, const Body& body) {
  if (out.scalar_type() == at::kBool) {
    return fill_type<bool>(out, draw, body);
  }
  fill_numbers(out, draw, name, body);
}

// PyTorch's own checks, with a kernel that does nothing.
template <typename>
struct Nothing {
  template <typename... Given>
  void operator()(Given&&... /*given*/) const {}
};

at::Tensor self_of(c10::ArrayRef<c10::IValue> arguments) {
  return arguments[0].toTensor();
}

double number(const c10::IValue& value) {
  return value.toScalar().toDouble();
}

// What the numbers of a float or complex tensor are written to.
at::Tensor real_parts(const at::Tensor& out, const char* name) {
  check_taken(out, out.is_floating_point() || out.is_complex(), name);
  return out.is_complex() ? at::view_as_real(out) : out;
}

// --- uniform_, normal_, ... : check, run ---

void check_uniform(c10::ArrayRef<c10::IValue> given) {
  auto self = self_of(given);
  templates::uniform_impl_<Nothing, void>(self, number(given[1]), number(given[2]), std::nullopt);
}

void uniform(const at::Tensor& self, const Draw& draw, double from, double to) {
  const auto whole = real_parts(self, "uniform_kernel_cpu");
  if (whole.is_cuda()) {
    return fill_on_gpu("uniform", whole, draw, from, to);
  }
  fill_floats(whole, draw, Standard::kUniform, [&](auto x) {
    const auto low = static_cast<decltype(x)>(from);
    return x * (static_cast<decltype(x)>(to) - low) + low;
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
  const auto whole = real_parts(self, "normal_kernel_cpu");
  if (whole.is_cuda()) {
    return fill_on_gpu("normal", whole, draw, mean, std);
  }
  fill_floats(whole, draw, Standard::kNormal, [&](auto x) {
    return x * static_cast<decltype(x)>(std) + static_cast<decltype(x)>(mean);
  });
}

void check_log_normal(c10::ArrayRef<c10::IValue> given) {
  auto self = self_of(given);
  templates::log_normal_impl_<Nothing, void>(self, number(given[1]), number(given[2]), {});
}

void log_normal(const at::Tensor& self, const Draw& draw, double mean, double std) {
  const auto whole = real_parts(self, "log_normal_cpu");
  if (whole.is_cuda()) {
    return fill_on_gpu("log_normal", whole, draw, mean, std);
  }
  fill_floats(whole, draw, Standard::kNormal, [&](auto x) {
    return philox::exp(x * static_cast<decltype(x)>(std) + static_cast<decltype(x)>(mean));
  });
}

void check_exponential(c10::ArrayRef<c10::IValue> given) {
  auto self = self_of(given);
  templates::exponential_impl_<Nothing, void>(self, number(given[1]), {});
}

void exponential(const at::Tensor& self, const Draw& draw, double lambda, double /*none*/) {
  const auto whole = real_parts(self, "exponential_cpu");
  if (whole.is_cuda()) {
    return fill_on_gpu("exponential", whole, draw, lambda);
  }
  fill_floats(whole, draw, Standard::kExponential, [&](auto x) {
    return x / static_cast<decltype(x)>(lambda);
  });
}

void check_cauchy(c10::ArrayRef<c10::IValue> given) {
  auto self = self_of(given);
  templates::cauchy_impl_<Nothing, void>(self, number(given[1]), number(given[2]), {});
}

void cauchy(const at::Tensor& self, const Draw& draw, double median, double sigma) {
  const auto whole = real_parts(self, "cauchy_cpu");
  if (whole.is_cuda()) {
    return fill_on_gpu("cauchy", whole, draw, median, sigma);
  }
  fill_floats(whole, draw, Standard::kCauchy, [&](auto x) {
    return x * static_cast<decltype(x)>(sigma) + static_cast<decltype(x)>(median);
  });
}

void check_geometric(c10::ArrayRef<c10::IValue> given) {
  auto self = self_of(given);
  templates::geometric_impl_<Nothing, void>(self, number(given[1]), {});
}

// -log(1 - p) in float, without what 1 - p loses where p is small.
float negative_log_of_rest(float p) {
  const auto bits = std::bit_cast<int32_t>(1.0F - p);
  const float m = std::bit_cast<float>((bits & 0x7FFFFF) | (126 << 23));
  const bool large = 0.5F < p;
  const float s = large ? (1.0F - m) / (1.0F + m) : p / (2.0F - p);
  const float halvings = large ? static_cast<float>(126 - (bits >> 23)) : 0.0F;
  const float square = s * s;
  float sum = 1.0F / 19;
  for (int k = 17; k > 0; k -= 2) {
    sum = sum * square + 1.0F / static_cast<float>(k);
  }
  return halvings * 0.693147182F + (s * 2.0F) * sum;
}

void geometric(const at::Tensor& self, const Draw& draw, double p, double /*none*/) {
  const double unit = philox::negative_log(1.0 - p);
  const float short_unit = negative_log_of_rest(static_cast<float>(p));
  if (self.is_cuda()) {
    check_taken(self, is_number(self), "geometric_cpu");
    return fill_on_gpu("geometric", self, draw, unit, short_unit);
  }
  fill_numbers(self, draw, "geometric_cpu", [&]<typename T>() {
    return [unit, short_unit](const philox::Words& w, int64_t /*i*/) {
      if constexpr (std::is_same_v<T, double>) {
        return std::ceil(standard_double(Standard::kExponential, w) / unit);
      } else {
        const float trials = std::ceil(philox::exponential(w[0]) / short_unit);
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
  if (self.is_cuda()) {
    check_taken(self, !self.is_complex(), "bernoulli_scalar_cpu_");
    DrawNumbers numbers;
    numbers.a = p;
    return draw_on_gpu("bernoulli_float", at::kFloat, self, draw, numbers);
  }
  fill_all(self, draw, "bernoulli_scalar_cpu_", [&]<typename T>() {
    return [p](const philox::Words& w, int64_t /*i*/) {
      return static_cast<T>(philox::uniform(w[0]) < static_cast<float>(p));
    };
  });
}

void bernoulli_tensor(const at::Tensor& self, const Draw& draw, const at::Tensor& chances) {
  const auto given = chances.expand(self.sizes());
  const bool is_double = given.scalar_type() == at::kDouble;
  const auto wide = given.to(at::kDouble).contiguous();
  if (self.is_cuda()) {
    check_taken(self, !self.is_complex(), "bernoulli_tensor_cpu_self_");
    at::_assert_async(wide.ge(0).logical_and_(wide.le(1)).all());
    DrawNumbers numbers;
    numbers.chances = wide;
    return draw_on_gpu(
        is_double ? "chances_double" : "chances_float", at::kFloat, self, draw, numbers);
  }
  const auto* p = wide.const_data_ptr<double>();
  for (int64_t i = 0; i < wide.numel(); ++i) {
    const double p_in = p[i];
    TORCH_CHECK(p_in >= 0 && p_in <= 1);  // PyTorch's words
  }
  fill_all(self, draw, "bernoulli_tensor_cpu_self_", [&]<typename T>() {
    return [p, is_double](const philox::Words& w, int64_t i) {
      const double drawn =
          is_double ? philox::uniform_double(w[0], w[1]) : double{philox::uniform(w[0])};
      return static_cast<T>(drawn < p[i]);
    };
  });
}

// --- integers ---

// Fills with `first` + a number below `range`; a range of 0 stands for 2^64.
void integers(
    const at::Tensor& self, const Draw& draw, const char* name, uint64_t range, int64_t first) {
  if (self.is_cuda()) {
    check_taken(self, !self.is_complex(), name);
    DrawNumbers numbers;
    numbers.range = range;
    numbers.first = first;
    return draw_on_gpu("integers_long", at::kLong, self, draw, numbers);
  }
  fill_all(self, draw, name, [&]<typename T>() {
    return [range, first](const philox::Words& w, int64_t /*i*/) {
      const auto drawn = philox::below(range, w[0], w[1]) + static_cast<uint64_t>(first);
      return static_cast<T>(static_cast<int64_t>(drawn));
    };
  });
}

constexpr const char* kFromTo = "random_from_to_kernel_cpu";

thread_local Draw current_draw;

// PyTorch's checks of the bounds, and its range for each type.
template <typename>
struct FromTo {
  void operator()(
      at::TensorIteratorBase& iter, uint64_t range, int64_t from, auto&& /*none*/) const {
    integers(iter.tensor(0), current_draw, kFromTo, range, from);
  }
  void operator()(at::TensorIteratorBase& iter, auto&& /*none*/) const {
    integers(iter.tensor(0), current_draw, kFromTo, 0, 0);
  }
};

template <template <typename> class Kernel>
void from_to(at::Tensor self, int64_t from, std::optional<int64_t> to) {
  templates::random_from_to_impl<Kernel, void>(self, from, to, std::nullopt);
}

// [0, the largest value], or all integers that a float holds exactly.
void whole_range(const at::Tensor& self, const Draw& draw) {
  uint64_t last = 1;
  if (at::isIntegralType(self.scalar_type(), /*includeBool=*/false)) {
    AT_DISPATCH_INTEGRAL_TYPES(self.scalar_type(), "random", [&] {
      last = static_cast<uint64_t>(std::numeric_limits<scalar_t>::max());
    });
  } else if (self.scalar_type() != at::kBool) {
    last = uint64_t{1} << (self.scalar_type() == at::kDouble ? 53 : bits_of(self.scalar_type()));
  }
  integers(self, draw, "random_kernel_cpu", last + 1, 0);
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
