// PyTorch's LSTM and GRU call fused cells on every device from outside. The CPU has none, so they
// are made of the operators that the CPU's own path uses, but on CUDA memory.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "base/device.h"
#include "record/record.h"

namespace tiny {
namespace {

using at::Tensor;
using Maybe = std::optional<Tensor>;

bool given(const Maybe& tensor) {
  return tensor.has_value() && tensor->defined();
}

Tensor side_by_side(const std::vector<Tensor>& gates) {
  return at::cat(gates, 1);
}

Tensor plus(const Tensor& gates, const Maybe& bias) {
  return given(bias) ? gates + *bias : gates;
}

// d sigmoid(x) / dx and d tanh(x) / dx, from the values of the functions.
Tensor sigmoid_slope(const Tensor& y) {
  return y * (1 - y);
}
Tensor tanh_slope(const Tensor& y) {
  return 1 - y * y;
}

// Also the host of portable devices: what the cells are made of is compiled for them.
bool on_cpu(const Tensor& tensor) {
  return host_device(tensor.device().index()).type() == c10::kCPU;
}

template <size_t Results, typename... Args>
auto record_cell(const char* name, const Args&... args) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  c10::Stack stack{c10::IValue(args)...};
  record(op, &stack);
  return [&]<size_t... I>(std::index_sequence<I...>) {
    return std::make_tuple(stack[I].toTensor()...);
  }(std::make_index_sequence<Results>());
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(
    const Tensor& input_gates,
    const Tensor& hidden_gates,
    const Tensor& cx,
    const Maybe& input_bias,
    const Maybe& hidden_bias) {
  if (!on_cpu(cx)) {
    return record_cell<3>(
        "aten::_thnn_fused_lstm_cell", input_gates, hidden_gates, cx, input_bias, hidden_bias);
  }
  const auto gates = (plus(input_gates, input_bias) + plus(hidden_gates, hidden_bias)).chunk(4, 1);
  const auto in = gates[0].sigmoid();
  const auto forget = gates[1].sigmoid();
  const auto cell = gates[2].tanh();
  const auto out = gates[3].sigmoid();
  auto cy = forget * cx + in * cell;
  auto hy = out * cy.tanh();
  return {std::move(hy), std::move(cy), side_by_side({in, forget, cell, out})};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(
    const Maybe& grad_hy,
    const Maybe& grad_cy,
    const Tensor& cx,
    const Tensor& cy,
    const Tensor& workspace,
    bool has_bias) {
  if (!on_cpu(cx)) {
    return record_cell<3>(
        "aten::_thnn_fused_lstm_cell_backward_impl", grad_hy, grad_cy, cx, cy, workspace, has_bias);
  }
  const auto gates = workspace.chunk(4, 1);
  const auto &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const auto squashed = cy.tanh();
  Tensor grad_cell = given(grad_hy) ? *grad_hy * out * tanh_slope(squashed) : Tensor();
  if (given(grad_cy)) {
    grad_cell = grad_cell.defined() ? grad_cell + *grad_cy : *grad_cy;
  }
  const auto grad_out =
      given(grad_hy) ? *grad_hy * squashed * sigmoid_slope(out) : at::zeros_like(out);
  auto grad_gates = side_by_side(
      {grad_cell * cell * sigmoid_slope(in),
       grad_cell * cx * sigmoid_slope(forget),
       grad_cell * in * tanh_slope(cell),
       grad_out});
  auto grad_bias = has_bias ? grad_gates.sum(0) : Tensor();
  return {std::move(grad_gates), grad_cell * forget, std::move(grad_bias)};
}

std::tuple<Tensor, Tensor> gru_cell(
    const Tensor& input_gates,
    const Tensor& hidden_gates,
    const Tensor& hx,
    const Maybe& input_bias,
    const Maybe& hidden_bias) {
  if (!on_cpu(hx)) {
    return record_cell<2>(
        "aten::_thnn_fused_gru_cell", input_gates, hidden_gates, hx, input_bias, hidden_bias);
  }
  const auto inputs = plus(input_gates, input_bias).chunk(3, 1);
  const auto hiddens = plus(hidden_gates, hidden_bias).chunk(3, 1);
  const auto reset = (inputs[0] + hiddens[0]).sigmoid();
  const auto update = (inputs[1] + hiddens[1]).sigmoid();
  const auto fresh = (inputs[2] + reset * hiddens[2]).tanh();
  return {fresh + update * (hx - fresh), side_by_side({reset, update, fresh, hx, hiddens[2]})};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(
    const Tensor& grad_hy, const Tensor& workspace, bool has_bias) {
  if (!on_cpu(grad_hy)) {
    return record_cell<5>("aten::_thnn_fused_gru_cell_backward", grad_hy, workspace, has_bias);
  }
  const auto saved = workspace.chunk(5, 1);
  const auto &reset = saved[0], &update = saved[1], &fresh = saved[2], &hx = saved[3];
  const auto grad_fresh = grad_hy * (1 - update) * tanh_slope(fresh);
  const auto grad_update = grad_hy * (hx - fresh) * sigmoid_slope(update);
  const auto grad_reset = grad_fresh * saved[4] * sigmoid_slope(reset);
  auto grad_input = side_by_side({grad_reset, grad_update, grad_fresh});
  auto grad_hidden = side_by_side({grad_reset, grad_update, grad_fresh * reset});
  auto grad_input_bias = has_bias ? grad_input.sum(0) : Tensor();
  auto grad_hidden_bias = has_bias ? grad_hidden.sum(0) : Tensor();
  return {grad_input, grad_hidden, grad_hy * update, grad_input_bias, grad_hidden_bias};
}

}  // namespace
}  // namespace tiny

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", &tiny::lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &tiny::lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &tiny::gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &tiny::gru_cell_backward);
}
