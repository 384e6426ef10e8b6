// Random operators that are made of others where a device draws from the portable stream, and that
// networks call for each layer, or whose checks PyTorch has as templates. Others are in
// torch_tiny/composed.
#include <ATen/native/DistributionTemplates.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

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

// The order of random keys.
at::Tensor& permutation_out(int64_t n, Generator generator, at::Tensor& result) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  at::native::check_supported_max_int_with_precision(n, result);
  result.resize_({n});
  const auto keys = at::empty({n}, result.options().dtype(at::kLong)).random_(generator);
  return result.copy_(at::argsort(keys, /*stable=*/true, 0, false));
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
  library->impl("randperm.generator_out", kernel<&permutation_out>());
  library->impl("normal.Tensor_float", kernel<&normal_mean>());
  library->impl("normal.float_Tensor", kernel<&normal_std>());
  library->impl("normal.Tensor_Tensor", kernel<&normal_both>());
  library->impl("normal.Tensor_float_out", kernel<&normal_mean_out>());
  library->impl("normal.float_Tensor_out", kernel<&normal_std_out>());
  library->impl("normal.Tensor_Tensor_out", kernel<&normal_both_out>());
}

}  // namespace tiny
