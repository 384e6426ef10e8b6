// Scaled dot-product attention: the algorithm that the memory's own device would choose.
#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <torch/library.h>

#include <cmath>

#include "core/aten_call.h"
#include "memory/storage.h"

namespace tiny {
namespace {

using at::Tensor;

// A tensor of the memory's device with the metadata of a tiny one and no data: enough to choose.
Tensor metadata_on_host(const Tensor& tensor) {
  const auto host = host_device(tensor.device().index());
  auto nothing = c10::Storage(
      c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(),
          static_cast<int64_t>(tensor.storage().nbytes()),
          c10::DataPtr(nullptr, host),
          /*allocator=*/nullptr,
          /*resizable=*/false));
  auto result = host_tensor(
      nothing,
      tensor.sizes(),
      tensor.strides(),
      tensor.storage_offset(),
      tensor.scalar_type(),
      false,
      false);
  if (tensor.requires_grad()) {
    result.set_requires_grad(true);
  }
  return result;
}

int64_t choose(
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const std::optional<Tensor>& mask,
    double dropout,
    bool causal,
    std::optional<double> scale,
    bool enable_gqa) {
  const auto index = query.device().index();
  const bool grad_mode = c10::GradMode::is_enabled();
  HostScope scope(index);
  c10::AutoGradMode as_the_user(grad_mode);
  const auto host_mask =
      mask.has_value() && mask->defined() ? std::optional(metadata_on_host(*mask)) : std::nullopt;
  auto choice = static_cast<at::SDPBackend>(at::_fused_sdp_choice(
      metadata_on_host(query),
      metadata_on_host(key),
      metadata_on_host(value),
      host_mask,
      dropout,
      causal,
      scale,
      enable_gqa));
  // PyTorch takes "flash" on a device from outside for the CPU's; on CUDA memory it comes in by the
  // entry for such devices.
  if (host_device(index).type() != c10::kCPU && choice == at::SDPBackend::flash_attention) {
    choice = at::SDPBackend::overrideable;
  }
  return static_cast<int64_t>(choice);
}

// Flash attention wants heads of a multiple of 8; zeros change nothing but the usual scale.
Tensor padded(const Tensor& tensor) {
  constexpr int64_t kMultiple = 8;
  const auto over = tensor.size(-1) % kMultiple;
  return over == 0 ? tensor : at::constant_pad_nd(tensor, {0, kMultiple - over});
}

double scale_of(const Tensor& query, std::optional<double> scale) {
  return scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(-1))));
}

auto fused_attention(
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const std::optional<Tensor>& /*bias: never with flash attention*/,
    double dropout,
    bool causal,
    bool return_debug_mask,
    std::optional<double> scale) {
  auto results = at::_scaled_dot_product_flash_attention(
      padded(query),
      padded(key),
      padded(value),
      dropout,
      causal,
      return_debug_mask,
      scale_of(query, scale));
  auto& out = std::get<0>(results);
  out = out.slice(-1, 0, query.size(-1));
  return results;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> fused_attention_backward(
    const Tensor& grad_out,
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const Tensor& /*bias*/,
    std::array<bool, 4> /*grad_input_mask*/,
    const Tensor& out,
    const Tensor& logsumexp,
    const Tensor& cum_seq_q,
    const Tensor& cum_seq_k,
    c10::SymInt max_q,
    c10::SymInt max_k,
    double dropout,
    bool causal,
    const Tensor& philox_seed,
    const Tensor& philox_offset,
    std::optional<double> scale) {
  auto [grad_query, grad_key, grad_value] = at::_scaled_dot_product_flash_attention_backward_symint(
      padded(grad_out),
      padded(query),
      padded(key),
      padded(value),
      padded(out),
      logsumexp,
      cum_seq_q,
      cum_seq_k,
      std::move(max_q),
      std::move(max_k),
      dropout,
      causal,
      philox_seed,
      philox_offset,
      scale_of(query, scale));
  const auto width = query.size(-1);
  return {
      grad_query.slice(-1, 0, width),
      grad_key.slice(-1, 0, width),
      grad_value.slice(-1, 0, width),
      Tensor()};
}

}  // namespace
}  // namespace tiny

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &tiny::choose)
}  // namespace at::native

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_scaled_dot_product_fused_attention_overrideable", &tiny::fused_attention);
  m.impl(
      "_scaled_dot_product_fused_attention_overrideable_backward", &tiny::fused_attention_backward);
}
