// Random operators that are made of others where a device draws from the portable stream.
#include <ATen/ExpandUtils.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>

#include "random/generator.h"
#include "random/portable_random.h"
#include "record/composed.h"

namespace tiny {
namespace {

namespace templates = at::native::templates;
using Generator = std::optional<at::Generator>;

std::tuple<at::Tensor, at::Tensor> dropout(
    const at::Tensor& input, double p, std::optional<bool> train) {
  if (input.numel() == 0) {
    return {input, at::empty_like(input, input.options().dtype(at::kBool))};
  }
  if (train.has_value() && !*train) {
    return {input.clone(), at::empty_like(input, input.options().dtype(at::kBool)).fill_(true)};
  }
  const double kept = 1 - p;
  auto mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(kept);
  return {input.mul(mask).mul_(kept == 0 ? 0.0 : 1 / kept), mask};
}

// What is not above 0 gets a slope of its own, which the noise keeps for the derivative.
at::Tensor random_slopes(
    const at::Tensor& self,
    at::Tensor& noise,
    const at::Scalar& lower,
    const at::Scalar& upper,
    bool training,
    Generator generator) {
  TORCH_CHECK(
      self.sizes() == noise.sizes(),
      "noise tensor shape must match self tensor shape. Got self.shape = ",
      self.sizes(),
      " noise.shape = ",
      noise.sizes());
  if (!training) {
    return at::leaky_relu(self, (lower.toDouble() + upper.toDouble()) / 2);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      at::isFloatingType(self.scalar_type()),
      "\"rrelu_with_noise_out_cpu\" not implemented for '",
      c10::toString(self.scalar_type()),
      "'");
  const auto drawn = at::empty(self.sizes(), self.options())
                         .uniform_(lower.toDouble(), upper.toDouble(), std::move(generator));
  noise.copy_(at::where(self.le(0), drawn, 1));
  return at::mul(self.contiguous(), noise.contiguous());
}

at::Tensor& random_slopes_in_place(
    at::Tensor& self,
    at::Tensor& noise,
    const at::Scalar& lower,
    const at::Scalar& upper,
    bool training,
    Generator generator) {
  return self.copy_(random_slopes(self, noise, lower, upper, training, std::move(generator)));
}

at::Tensor& random_slopes_out(
    const at::Tensor& self,
    at::Tensor& noise,
    const at::Scalar& lower,
    const at::Scalar& upper,
    bool training,
    Generator generator,
    at::Tensor& result) {
  const auto made = random_slopes(self, noise, lower, upper, training, std::move(generator));
  result.resize_(made.sizes());
  return result.copy_(made);
}

// The order of random keys.
at::Tensor& permutation_out(int64_t n, Generator generator, at::Tensor& result) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  at::native::check_supported_max_int_with_precision(n, result);
  result.resize_({n});
  const auto keys = at::empty({n}, result.options().dtype(at::kLong)).random_(generator);
  return result.copy_(at::argsort(keys, /*stable=*/true, 0, false));
}

// As PyTorch draws one sample: the largest of p / exponential. With replacement, once per sample.
at::Tensor draw_categories(
    const at::Tensor& self, int64_t count, bool replacement, Generator generator) {
  constexpr int64_t kMostAtOnce = 1 << 24;
  TORCH_CHECK(self.dim() > 0 && self.dim() <= 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(
      at::isFloatingType(self.scalar_type()),
      "multinomial only supports floating-point dtypes for input, got: ",
      self.scalar_type());
  TORCH_CHECK(count > 0, "cannot sample n_sample <= 0 samples");
  const auto categories = self.size(-1);
  TORCH_CHECK(
      replacement || count <= categories,
      "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  TORCH_CHECK(categories <= (int64_t{1} << 24), "number of categories cannot exceed 2^24");
  if (self.numel() == 0) {
    auto sizes = self.sizes().vec();
    sizes.back() = count;
    return at::empty(sizes, self.options().dtype(at::kLong));
  }
  TORCH_CHECK(
      self.max().lt(INFINITY).logical_and(self.min().ge(0)).item().toBool(),
      "probability tensor contains either `inf`, `nan` or element < 0");
  TORCH_CHECK(
      !self.sum(-1).eq(0).any().item().toBool(),
      "invalid multinomial distribution (sum of probabilities <= 0)");
  const auto chances = self.scalar_type() == at::kDouble ? self : self.to(at::kFloat);
  if (!replacement || count == 1) {
    const auto keys = at::div(chances, at::empty_like(chances).exponential_(1, generator));
    return count == 1 ? keys.argmax(-1, true) : std::get<1>(keys.topk(count));
  }
  std::vector<at::Tensor> parts;
  const auto step = std::max<int64_t>(1, kMostAtOnce / self.numel());
  for (int64_t done = 0; done < count; done += step) {
    auto sizes = chances.sizes().vec();
    sizes.insert(sizes.end() - 1, std::min(step, count - done));
    const auto drawn = at::empty(sizes, chances.options()).exponential_(1, generator);
    parts.push_back(at::div(chances.unsqueeze(-2), drawn).argmax(-1));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts, -1);
}

at::Tensor& draw_categories_out(
    const at::Tensor& self,
    int64_t count,
    bool replacement,
    Generator generator,
    at::Tensor& result) {
  const auto drawn = draw_categories(self, count, replacement, std::move(generator));
  result.resize_(drawn.sizes());
  return result.copy_(drawn);
}

// PyTorch's checks and shapes around a normal_ of ours.
template <typename>
struct ByCall {
  void operator()(const at::Tensor& self, double mean, double std, const Generator& from) const {
    self.normal_(mean, std, from);
  }
};

at::Tensor normal_mean(const at::Tensor& mean, double std, Generator from) {
  return templates::normal_impl<ByCall, void>(mean, std, std::move(from));
}
at::Tensor normal_std(double mean, const at::Tensor& std, Generator from) {
  return templates::normal_impl<ByCall, void>(mean, std, std::move(from));
}
at::Tensor normal_both(const at::Tensor& mean, const at::Tensor& std, Generator from) {
  return templates::normal_impl<ByCall, void>(mean, std, std::move(from));
}
at::Tensor& normal_mean_out(const at::Tensor& mean, double std, Generator from, at::Tensor& out) {
  return templates::normal_out_impl<ByCall, void>(out, mean, std, std::move(from));
}
at::Tensor& normal_std_out(double mean, const at::Tensor& std, Generator from, at::Tensor& out) {
  return templates::normal_out_impl<ByCall, void>(out, mean, std, std::move(from));
}
at::Tensor& normal_both_out(
    const at::Tensor& mean, const at::Tensor& std, Generator from, at::Tensor& out) {
  return templates::normal_out_impl<ByCall, void>(out, mean, std, std::move(from));
}

bool draws_portable_numbers(c10::ArrayRef<c10::IValue> arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().device().type() == kTiny &&
        has_portable_numbers(value.toTensor().device().index());
  });
}

template <auto kFunction>
torch::CppFunction kernel() {
  return composed_kernel<kFunction, &draws_portable_numbers>();
}

}  // namespace

void install_portable_random() {
  static auto* library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl("native_dropout", kernel<&dropout>());
  library->impl("rrelu_with_noise", kernel<&random_slopes>());
  library->impl("rrelu_with_noise_", kernel<&random_slopes_in_place>());
  library->impl("rrelu_with_noise.out", kernel<&random_slopes_out>());
  library->impl("randperm.generator_out", kernel<&permutation_out>());
  library->impl("multinomial", kernel<&draw_categories>());
  library->impl("multinomial.out", kernel<&draw_categories_out>());
  library->impl("normal.Tensor_float", kernel<&normal_mean>());
  library->impl("normal.float_Tensor", kernel<&normal_std>());
  library->impl("normal.Tensor_Tensor", kernel<&normal_both>());
  library->impl("normal.Tensor_float_out", kernel<&normal_mean_out>());
  library->impl("normal.float_Tensor_out", kernel<&normal_std_out>());
  library->impl("normal.Tensor_Tensor_out", kernel<&normal_both_out>());
}

}  // namespace tiny
