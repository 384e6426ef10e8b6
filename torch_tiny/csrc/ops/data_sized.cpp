// Operators whose results are as large as the data says, on portable devices: the device counts,
// the host reads the count, and operators of a known size do the rest. Elsewhere they run at once.
// So it is with `equal`, whose result the host reads at once.
#include "ops/data_sized.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/_index_put_impl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index.h>
#include <ATen/ops/nonzero_static.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>

#include "base/device.h"
#include "record/composed.h"

namespace tiny {
namespace {

using at::Tensor;
using Values = c10::ArrayRef<c10::IValue>;

// The positions of what is true in a 1-d mask of which `count` elements are.
Tensor positions(const Tensor& mask, int64_t count) {
  return at::nonzero_static(mask, count).select(1, 0);
}

int64_t count_true(const Tensor& mask) {
  return at::count_nonzero(mask).item<int64_t>();
}

Tensor places_of_nonzero(const Tensor& self) {
  // As the CPU's: one column after the other, also where there is nothing.
  const auto count = count_true(self);
  const auto places = at::nonzero_static(self, count);
  const auto columns = at::empty({self.dim(), count}, places.options());
  columns.copy_(places.t());
  return columns.as_strided({count, self.dim()}, {1, count});
}

Tensor masked_select(const Tensor& self, const Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: expected BoolTensor for mask");
  const auto [one, other] = at::expand_outplace(mask, self);
  const auto flat = one->reshape({-1});
  return other->reshape({-1}).index_select(0, positions(flat, count_true(flat)));
}

bool is_mask(const std::optional<Tensor>& index) {
  return index.has_value() && index->defined() &&
      (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte);
}

using Indices = c10::List<std::optional<Tensor>>;

// The indices as numbers on the device. They may lie on the CPU, as those that Python makes of a
// list do; a mask becomes the places where it is set.
Indices numbers_of(const Tensor& self, const Indices& indices) {
  Indices numbers;
  const auto add = [&](const Tensor& index) {
    numbers.push_back(index.is_cpu() ? index.to(self.device()) : index);
  };
  int64_t dim = 0;
  for (const std::optional<Tensor>& index : indices) {
    if (!index.has_value() || !index->defined()) {
      numbers.push_back(index);
      ++dim;
      continue;
    }
    if (!is_mask(index)) {
      add(*index);
      ++dim;
      continue;
    }
    for (int64_t d = 0; d < index->dim(); ++d, ++dim) {
      TORCH_CHECK_INDEX(
          dim < self.dim() && index->size(d) == self.size(dim),
          "The shape of the mask ",
          index->sizes(),
          " at index ",
          d,
          " does not match the shape of the indexed tensor ",
          self.sizes(),
          " at index ",
          dim);
    }
    const auto places = index->is_cpu() ? index->nonzero() : places_of_nonzero(*index);
    for (const auto& column : places.unbind(1)) {
      add(column);
    }
  }
  return numbers;
}

Tensor index_by_numbers(const Tensor& self, const Indices& indices) {
  return at::index(self, numbers_of(self, indices));
}

Tensor& put_by_numbers(
    Tensor& self, const Indices& indices, const Tensor& values, bool accumulate, bool is_unsafe) {
  return at::_index_put_impl_(self, numbers_of(self, indices), values, accumulate, is_unsafe);
}

// Runs of equal elements of a 1-d tensor: one of each, the run of each element, the lengths.
std::tuple<Tensor, Tensor, Tensor> runs(const Tensor& flat, bool counts) {
  const auto n = flat.numel();
  const auto whole = flat.options().dtype(at::kLong);
  if (n == 0) {
    return {at::empty({0}, flat.options()), at::empty({0}, whole), at::empty({0}, whole)};
  }
  auto first = at::ones({n}, flat.options().dtype(at::kBool));
  first.slice(0, 1).copy_(flat.slice(0, 1).ne(flat.slice(0, 0, n - 1)));
  const auto starts = positions(first, count_true(first));
  auto lengths = at::empty({0}, whole);
  if (counts) {
    lengths = at::cat({starts.slice(0, 1), at::full({1}, n, whole)}).sub(starts);
  }
  return {flat.index_select(0, starts), first.cumsum(0).sub(1), lengths};
}

std::tuple<Tensor, Tensor, Tensor> unique(
    const Tensor& self, bool /*sorted*/, bool inverse, bool counts) {
  const auto [sorted, order] = self.reshape({-1}).sort(/*stable=*/true, 0, false);
  auto [values, run, lengths] = runs(sorted, counts);
  auto back = at::empty({0}, order.options());
  if (inverse) {
    back = at::empty_like(order).scatter_(0, order, run).view(self.sizes());
  }
  return {values, back, lengths};
}

// What derivatives of fills by index call.
std::tuple<Tensor, Tensor> unique_without_counts(const Tensor& self, bool sorted, bool inverse) {
  auto [values, back, lengths] = unique(self, sorted, inverse, /*counts=*/false);
  return {values, back};
}

std::tuple<Tensor, Tensor, Tensor> unique_consecutive(
    const Tensor& self, bool inverse, bool counts, std::optional<int64_t> /*dim*/) {
  auto [values, run, lengths] = runs(self.reshape({-1}), counts);
  return {values, inverse ? run.view(self.sizes()) : at::empty({0}, run.options()), lengths};
}

Tensor bincount(const Tensor& self, const std::optional<Tensor>& weights, c10::SymInt least) {
  const bool weighted = weights.has_value() && weights->defined();
  const auto smallest = least.expect_int();
  TORCH_CHECK(smallest >= 0, "minlength should be >= 0");
  int64_t size = 0;
  if (self.numel() > 0) {
    TORCH_CHECK(
        self.dim() == 1 && self.min().item<int64_t>() >= 0,
        "bincount only supports 1-d non-negative integral inputs.");
    size = self.max().item<int64_t>() + 1;
  }
  TORCH_CHECK(
      !weighted || (weights->dim() == 1 && weights->numel() == self.numel()),
      "weights should be 1-d and have the same length as input");
  const auto kind = !weighted                ? at::kLong
      : weights->scalar_type() == at::kFloat ? at::kFloat
                                             : at::kDouble;
  auto counts = at::zeros({std::max(size, smallest)}, self.options().dtype(kind));
  const auto shares = weighted ? weights->to(kind) : at::ones_like(self, counts.options());
  return self.numel() == 0 ? counts : counts.index_add_(0, self.to(at::kLong), shares);
}

Tensor repeat_interleave(const Tensor& repeats, std::optional<c10::SymInt> size) {
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  TORCH_CHECK(
      repeats.scalar_type() == at::kLong || repeats.scalar_type() == at::kInt,
      "repeats has to be Long or Int tensor");
  if (repeats.numel() == 0) {
    return at::empty_like(repeats);
  }
  TORCH_CHECK(repeats.min().item<int64_t>() >= 0, "repeats can not be negative");
  const auto ends = repeats.cumsum(0);
  const auto total = ends.select(0, -1).item<int64_t>();
  TORCH_CHECK(
      !size.has_value() || size->expect_int() == total,
      "allocated size does not match required size");
  const auto at = at::arange(total, ends.options());
  return at::searchsorted(ends, at, /*out_int32=*/false, /*right=*/true).to(repeats.scalar_type());
}

// One byte leaves the device.
bool equal(const Tensor& self, const Tensor& other) {
  return self.sizes() == other.sizes() &&
      (self.numel() == 0 || at::eq(self, other).all().item<bool>());
}

bool is_portable_tensor(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() &&
      value.toTensor().device().type() == kTiny && is_portable(value.toTensor().device().index());
}

bool on_portable(Values arguments) {
  return is_portable_tensor(arguments[0]);
}

bool is_on_cpu(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().is_cpu();
}

bool with_masks(Values arguments) {
  if (!is_portable_tensor(arguments[0])) {
    return false;
  }
  const auto indices = arguments[1].toListRef();
  return std::any_of(indices.begin(), indices.end(), [](const c10::IValue& index) {
    return is_on_cpu(index) || (is_portable_tensor(index) && is_mask(index.toTensor()));
  });
}

// One value for all places needs no numbers: their count does not matter.
bool with_masks_and_values(Values arguments) {
  const auto indices = arguments[1].toListRef();
  return with_masks(arguments) &&
      (arguments[2].toTensor().numel() != 1 ||
       std::any_of(indices.begin(), indices.end(), is_on_cpu));
}

bool comparable(Values arguments) {
  return on_portable(arguments) && is_portable_tensor(arguments[1]) &&
      arguments[0].toTensor().device() == arguments[1].toTensor().device() &&
      arguments[0].toTensor().dtype() == arguments[1].toTensor().dtype();
}

bool without_dim(Values arguments) {
  return is_portable_tensor(arguments[0]) && arguments[3].isNone();
}

}  // namespace

void install_data_sized() {
  static auto* library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl("equal", composed_kernel<&equal, &comparable>());
  library->impl("nonzero", composed_kernel<&places_of_nonzero, &on_portable>());
  library->impl("masked_select", composed_kernel<&masked_select, &on_portable>());
  library->impl("index.Tensor", composed_kernel<&index_by_numbers, &with_masks>());
  library->impl("_index_put_impl_", composed_kernel<&put_by_numbers, &with_masks_and_values>());
  library->impl("_unique", composed_kernel<&unique_without_counts, &on_portable>());
  library->impl("_unique2", composed_kernel<&unique, &on_portable>());
  library->impl("unique_consecutive", composed_kernel<&unique_consecutive, &without_dim>());
  library->impl("bincount", composed_kernel<&bincount, &on_portable>());
  library->impl("repeat_interleave.Tensor", composed_kernel<&repeat_interleave, &on_portable>());
}

}  // namespace tiny
