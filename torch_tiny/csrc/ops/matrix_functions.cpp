// Linear algebra that PyTorch composes of what some devices do not have.
#include "ops/matrix_functions.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/addbmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/linalg_eigvalsh.h>
#include <ATen/ops/linalg_lstsq.h>
#include <ATen/ops/linalg_lstsq_native.h>
#include <ATen/ops/linalg_matrix_rank_native.h>
#include <ATen/ops/linalg_pinv.h>
#include <ATen/ops/linalg_pinv_native.h>
#include <ATen/ops/linalg_svdvals.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "base/device.h"
#include "record/composed.h"

namespace tiny {
namespace {

using at::Tensor;
using Number = std::optional<double>;
using MaybeTensor = std::optional<Tensor>;
using Values = c10::ArrayRef<c10::IValue>;

// --- tolerances, which PyTorch makes as float64 tensors ---

bool has_doubles(const Tensor& matrix) {
  return matrix.device().type() != kTiny || has_type(matrix.device().index(), at::kDouble);
}

struct Tolerances {
  Tensor absolute, relative;
};

Tensor number_like(const Tensor& matrix, double value) {
  return at::full({}, value, matrix.options().dtype(c10::toRealValueType(matrix.scalar_type())));
}

double default_relative(const Tensor& matrix) {
  TORCH_CHECK(matrix.dim() >= 2, "The input tensor must have at least 2 dimensions.");
  const double epsilon =
      AT_DISPATCH_FLOATING_TYPES(c10::toRealValueType(matrix.scalar_type()), "tolerance", [] {
        return static_cast<double>(std::numeric_limits<scalar_t>::epsilon());
      });
  return epsilon * static_cast<double>(std::max(matrix.size(-1), matrix.size(-2)));
}

Tolerances tolerances(const Tensor& matrix, Number absolute, Number relative) {
  const double rest = absolute.value_or(0.0) > 0 ? 0.0 : default_relative(matrix);
  return {
      number_like(matrix, absolute.value_or(0.0)), number_like(matrix, relative.value_or(rest))};
}

Tolerances tolerances(
    const Tensor& matrix, const MaybeTensor& absolute, const MaybeTensor& relative) {
  const auto none = number_like(matrix, 0.0);
  if (relative.has_value()) {
    return {absolute.value_or(none), *relative};
  }
  const auto rest = number_like(matrix, default_relative(matrix));
  if (!absolute.has_value()) {
    return {none, rest};
  }
  return {*absolute, at::where(absolute->gt(0), none, rest)};
}

template <typename Tolerance>
Tensor pinv(
    const Tensor& self, const Tolerance& absolute, const Tolerance& relative, bool hermitian) {
  if (has_doubles(self)) {
    return at::native::linalg_pinv(self, absolute, relative, hermitian);
  }
  const auto [a, r] = tolerances(self, absolute, relative);
  return at::linalg_pinv(self, MaybeTensor(a), MaybeTensor(r), hermitian);
}

Tensor pinv_by_numbers(const Tensor& self, Number absolute, Number relative, bool hermitian) {
  return pinv(self, absolute, relative, hermitian);
}

Tensor pinv_by_one_number(const Tensor& self, double relative, bool hermitian) {
  return pinv(self, Number(0.0), Number(relative), hermitian);
}

// A Python number comes as a float64 tensor of the CPU.
Tensor pinv_by_one_tensor(const Tensor& self, const Tensor& relative, bool hermitian) {
  if (has_doubles(self)) {
    return at::native::linalg_pinv(self, relative, hermitian);
  }
  const auto none = number_like(self, 0.0);
  return at::linalg_pinv(self, MaybeTensor(none), relative.to(none.options()), hermitian);
}

Tensor pinv_by_tensors(
    const Tensor& self, const MaybeTensor& absolute, const MaybeTensor& relative, bool hermitian) {
  if (absolute.has_value() && relative.has_value()) {
    return at::native::linalg_pinv(self, absolute, relative, hermitian);
  }
  return pinv(self, absolute, relative, hermitian);
}

template <typename Tolerance>
Tensor rank(
    const Tensor& self, const Tolerance& absolute, const Tolerance& relative, bool hermitian) {
  if (has_doubles(self)) {
    return at::native::linalg_matrix_rank(self, absolute, relative, hermitian);
  }
  const auto [a, r] = tolerances(self, absolute, relative);
  if (self.numel() == 0) {
    return at::zeros(self.sizes().slice(0, self.dim() - 2), self.options().dtype(at::kLong));
  }
  const auto sizes = hermitian ? at::linalg_eigvalsh(self).abs() : at::linalg_svdvals(self);
  const auto least = at::maximum(a.unsqueeze(-1), sizes.amax(-1, true).mul(r.unsqueeze(-1)));
  return sizes.gt(least).sum(-1);
}

Tensor rank_by_numbers(const Tensor& self, Number absolute, Number relative, bool hermitian) {
  return rank(self, absolute, relative, hermitian);
}

Tensor rank_by_tensors(
    const Tensor& self, const MaybeTensor& absolute, const MaybeTensor& relative, bool hermitian) {
  return rank(self, absolute, relative, hermitian);
}

Tensor rank_by_one_number(const Tensor& self, double tolerance, bool hermitian) {
  return rank(self, Number(tolerance), Number(0.0), hermitian);
}

// --- least squares, which PyTorch makes of its out= form ---

// The driver that has a lowering: it says neither residuals nor singular values.
constexpr c10::string_view kPlain = "gelsy";

// Whether PyTorch's call is not simply recorded.
bool is_made_of_others(Values arguments) {
  const auto& matrix = arguments[0].toTensor();
  const auto& driver = arguments[3];
  return matrix.device().type() != kTiny || !is_portable(matrix.device().index()) ||
      !(driver.isNone() || driver.toStringView() == kPlain);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> least_squares(
    const Tensor& self, const Tensor& b, Number rcond, std::optional<c10::string_view> driver) {
  const bool portable = self.device().type() == kTiny && is_portable(self.device().index());
  const bool gels = driver == "gels", with_values = driver == "gelsd" || driver == "gelss";
  if (!portable || !(gels || with_values) || self.numel() == 0) {
    return at::native::linalg_lstsq(self, b, rcond, driver);
  }
  const auto [x, residuals, rank, values] = at::linalg_lstsq(self, b, rcond, kPlain);
  const auto m = self.size(-2), n = self.size(-1);
  auto left = residuals;
  if (m > n && (gels || rank.eq(n).all().item<bool>())) {
    const bool vectors = x.dim() < self.dim();
    const auto found = vectors ? x.unsqueeze(-1) : x, right = vectors ? b.unsqueeze(-1) : b;
    left = at::matmul(self, found).sub(right).square().sum(-2);
  }
  return {
      x,
      left,
      gels ? at::empty({0}, rank.options()) : rank,
      with_values ? at::linalg_svdvals(self) : values};
}

// --- the old Cholesky factorization, which raises while it runs ---

bool is_portable_batch(Values arguments) {
  const auto& matrix = arguments[0].toTensor();
  return matrix.device().type() == kTiny && is_portable(matrix.device().index()) &&
      matrix.dim() >= 2 && matrix.size(-1) == matrix.size(-2) && matrix.numel() > 0;
}

Tensor cholesky(const Tensor& self, bool upper) {
  const auto [factor, info] = at::linalg_cholesky_ex(self, upper);
  at::_linalg_check_errors(info, "cholesky", /*is_matrix=*/self.dim() == 2);
  return factor;
}

// --- addbmm_, which makes a tensor of one element as large as the product ---

bool is_grown_by_product(Values arguments) {
  const auto& self = arguments[0].toTensor();
  const auto &left = arguments[1].toTensor(), &right = arguments[2].toTensor();
  return self.device().type() == kTiny && is_portable(self.device().index()) && left.dim() == 3 &&
      right.dim() == 3 && self.sizes() != c10::IntArrayRef({left.size(1), right.size(2)});
}

Tensor& add_product_and_grow(
    Tensor& self,
    const Tensor& left,
    const Tensor& right,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  const auto sum = at::addbmm(self, left, right, beta, alpha);
  self.resize_(sum.sizes());
  return self.copy_(sum);
}

void install_tolerances(torch::Library& library) {
  library.impl("linalg_pinv", TORCH_FN(pinv_by_one_number));
  library.impl("linalg_pinv.rcond_tensor", TORCH_FN(pinv_by_one_tensor));
  library.impl("linalg_pinv.atol_rtol_float", TORCH_FN(pinv_by_numbers));
  library.impl("linalg_matrix_rank", TORCH_FN(rank_by_one_number));
  library.impl("linalg_matrix_rank.atol_rtol_float", TORCH_FN(rank_by_numbers));
  library.impl("linalg_matrix_rank.atol_rtol_tensor", TORCH_FN(rank_by_tensors));
}

}  // namespace

void install_matrix_functions() {
  static auto* library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  static auto* differentiable = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  install_tolerances(*library);
  install_tolerances(*differentiable);
  library->impl("linalg_pinv.atol_rtol_tensor", TORCH_FN(pinv_by_tensors));
  library->impl("cholesky", composed_kernel<&cholesky, &is_portable_batch>());
  library->impl("addbmm_", composed_kernel<&add_product_and_grow, &is_grown_by_product>());
  library->impl("linalg_lstsq", composed_kernel<&least_squares, &is_made_of_others>());
}

}  // namespace tiny
