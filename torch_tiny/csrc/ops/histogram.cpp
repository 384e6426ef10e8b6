// Histograms of integers: CUDA counts them, and programs expect that of every device but the CPU,
// whose kernel refuses them.
#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "base/device.h"
#include "record/composed.h"

namespace tiny {
namespace {

using at::Scalar;
using at::Tensor;

// As on CUDA, but that 64 bits count places of short integers: bounds are whole numbers, and found
// in the data if equal; the last bin has both of its ends; the result has the input's type.
Tensor count_integers(const Tensor& self, int64_t bins, const Scalar& min, const Scalar& max) {
  const auto least = min.to<int64_t>();
  const auto most = max.to<int64_t>();
  TORCH_CHECK(bins > 0, "bins must be > 0");
  TORCH_CHECK(least <= most, "max must be larger than min");
  const auto whole = self.options().dtype(at::kLong);
  auto counts = at::zeros({bins}, whole);
  if (self.numel() != 0) {
    const auto values = self.reshape({-1}).to(at::kLong);
    const bool is_given = least < most;
    const auto low = is_given ? at::scalar_tensor(least, whole) : values.min();
    const auto high = is_given ? at::scalar_tensor(most, whole) : values.max();
    const auto widen = low.eq(high).to(at::kLong);  // one value only: in the middle
    const auto first = low.sub(widen);
    const auto last = high.add(widen);
    const auto bin = values.sub(first).mul(bins).div(last.sub(first), "floor");
    const auto is_inside = values.ge(first).logical_and(values.le(last));
    counts.scatter_add_(0, bin.clamp(0, bins - 1), is_inside.to(at::kLong));
  }
  return counts.to(self.scalar_type());
}

Tensor& count_integers_out(
    const Tensor& self, int64_t bins, const Scalar& min, const Scalar& max, Tensor& out) {
  const auto counts = count_integers(self, bins, min, max);
  return out.resize_(counts.sizes()).copy_(counts);
}

bool are_integers_on_cpu(c10::ArrayRef<c10::IValue> arguments) {
  const auto& self = arguments[0].toTensor();
  return self.device().type() == kTiny && host_device(self.device().index()).is_cpu() &&
      c10::isIntegralType(self.scalar_type(), /*includeBool=*/false);
}

}  // namespace
}  // namespace tiny

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("histc", tiny::composed_kernel<&tiny::count_integers, &tiny::are_integers_on_cpu>());
  m.impl(
      "histc.out", tiny::composed_kernel<&tiny::count_integers_out, &tiny::are_integers_on_cpu>());
}
