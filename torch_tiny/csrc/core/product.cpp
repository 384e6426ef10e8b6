#include "core/product.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <atomic>

#include "base/mode.h"
#include "core/signature.h"

// Exported, but in no header that is installed.
namespace at::native {
TORCH_API __attribute__((weak)) void mkldnn_matmul(
    const Tensor& left, const Tensor& right, const Tensor& result, float beta, float alpha);
}  // namespace at::native

namespace tiny {
namespace {

// Multiplications; below, finding oneDNN's code takes longer than MKL's whole product.
constexpr int64_t kLeast = 1 << 20;
// oneDNN generates code for each product and keeps it, 0.6 MiB: for those that come again, and for
// so many in a process.
constexpr unsigned kRunsBefore = 16;
constexpr int kMostGenerated = 512;
std::atomic<int> generated{0};

// Where oneDNN takes float32, and has more to offer than MKL.
bool has_other_way() {
  return at::native::mkldnn_matmul != nullptr && at::hasMKLDNN() &&
      at::get_cpu_capability() == "AVX512";
}

bool is_plain(const Spec& spec) {
  return spec.dtype == at::kFloat && !spec.conj && !spec.neg;
}

// oneDNN would be given a copy that is larger than what there is.
bool is_expanded(const Spec& spec) {
  for (size_t i = 0; i < spec.sizes.size(); ++i) {
    if (spec.strides[i] == 0 && spec.sizes[i] > 1) {
      return true;
    }
  }
  return false;
}

bool is_one(const Token& token) {
  return token.kind == Token::Kind::kConstant && token.constant.isScalar() &&
      token.constant.toScalar().equal(1);
}

}  // namespace

std::unique_ptr<Product> Product::of(const Signature& signature) {
  static const bool is_possible = has_other_way();
  const auto& op = *signature.op;
  if (!is_possible || !(op.multiplies || op.adds_product) || signature.results.size() != 1) {
    return nullptr;
  }
  const auto& spec = signature.results[0].spec;
  const size_t tensors = op.adds_product ? 3 : 2;
  if (signature.specs.size() != tensors || !is_plain(spec) ||
      !std::all_of(signature.specs.begin(), signature.specs.end(), is_plain) ||
      !std::all_of(signature.tokens.begin() + tensors, signature.tokens.end(), is_one)) {
    return nullptr;
  }
  const auto first = signature.specs.end() - 2;
  if (std::any_of(first, signature.specs.end(), is_expanded)) {
    return nullptr;
  }
  const auto elements = c10::multiply_integers(spec.sizes);
  const auto depth = signature.specs.back().sizes.end()[-2];
  const bool is_contiguous = spec.strides == c10::contiguous_strides(spec.sizes);
  if (!is_contiguous || elements * depth < kLeast) {
    return nullptr;
  }
  return std::unique_ptr<Product>(new Product(signature));
}

bool Product::may_choose() {
  const auto& context = at::globalContext();
  return mode() == Mode::kAuto && !context.deterministicAlgorithms() &&
      !context.deterministicMkldnn() && context.userEnabledMkldnn();
}

bool Product::may_generate() {
  if (runs_ < kRunsBefore && ++runs_ == kRunsBefore) {
    may_generate_ = generated.fetch_add(1) < kMostGenerated;
  }
  return may_generate_;
}

bool Product::multiply(c10::Stack& stack) const try {
  at::RecordFunction profiled(at::RecordScope::FUNCTION);
  if (C10_UNLIKELY(profiled.isActive())) {
    profiled.before("torch_tiny::" + signature_.op->name + ", oneDNN");
  }
  const auto argument = [&](size_t index) -> const at::Tensor& { return stack[index].toTensor(); };
  const auto result = at::empty(signature_.results[0].spec.sizes, at::kFloat);
  const bool adds = signature_.op->adds_product;  // to its first argument
  if (adds) {
    result.copy_(argument(0));
  }
  at::native::mkldnn_matmul(argument(adds), argument(adds + 1), result, adds ? 1.0F : 0.0F, 1);
  stack.clear();
  stack.emplace_back(result);
  return true;
} catch (const std::exception&) {  // memory for a copy, most likely; the operator needs none
  return false;
}

}  // namespace tiny
