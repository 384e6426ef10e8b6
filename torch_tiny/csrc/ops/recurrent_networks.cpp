// Recurrent networks: PyTorch's own choices, which it does not make for a device from outside, are
// one oneDNN operator per layer and direction of an LSTM on the CPU, and cuDNN's networks on CUDA.
#include <ATen/Context.h>
#include <ATen/ops/_cudnn_rnn.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/rnn_relu_native.h>
#include <ATen/ops/rnn_tanh_native.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>

#include "base/device.h"

namespace tiny {
namespace {

using at::Tensor;
using Results = std::tuple<Tensor, Tensor, Tensor>;

// As oneDNN's and cuDNN's operators call them.
enum Mode : int64_t { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };

// The cases that PyTorch gives to oneDNN on the CPU, in float32.
bool fits_onednn(const Tensor& input, at::TensorList hx, at::TensorList params) {
  auto is_plain = [](const Tensor& tensor) {
    return tensor.device().type() == kTiny && tensor.scalar_type() == at::kFloat;
  };
  return at::globalContext().userEnabledMkldnn() && at::globalContext().hasMKLDNN() &&
      is_plain(input) && input.numel() != 0 && input.dim() == 3 && hx.size() == 2 &&
      std::all_of(hx.begin(), hx.end(), is_plain) &&
      std::all_of(params.begin(), params.end(), is_plain) &&
      hx[0].size(2) == hx[1].size(2) &&  // no projections
      host_device(input.device().index()).type() == c10::kCPU &&
      !is_portable(input.device().index());
}

// The cases that PyTorch gives to cuDNN, less dropout between layers, whose state is kept
// elsewhere.
bool fits_cudnn(
    const Tensor& input, at::TensorList hx, at::TensorList params, double dropout, bool train) {
  auto is_plain = [&](const Tensor& tensor) {
    return tensor.device().type() == kTiny && tensor.scalar_type() == input.scalar_type();
  };
  const auto type = input.scalar_type();
  return is_plain(input) && host_device(input.device().index()).type() == c10::kCUDA &&
      at::globalContext().userEnabledCuDNN() && at::Context::hasCuDNN() &&
      (type == at::kFloat || type == at::kDouble || type == at::kHalf) && input.numel() != 0 &&
      (dropout == 0 || !train) && std::all_of(hx.begin(), hx.end(), is_plain) &&
      std::all_of(params.begin(), params.end(), is_plain);
}

Results cudnn_network(
    Mode mode,
    const Tensor& input,
    at::TensorList hx,
    at::TensorList params,
    bool has_biases,
    int64_t layers,
    bool train,
    bool bidirectional,
    bool batch_first) {
  const auto cell = mode == kLstm ? std::optional(hx[1].contiguous()) : std::nullopt;
  const auto state_size = hx[0].size(2);
  const auto hidden = cell.has_value() ? cell->size(2) : state_size;
  const auto projection = hidden == state_size ? 0 : state_size;
  const int64_t per_direction = (has_biases ? 4 : 2) + (projection != 0 ? 1 : 0);
  auto [output, state, cells, reserve, weights] = at::_cudnn_rnn(
      input,
      params,
      per_direction,
      /*weight_buf=*/std::nullopt,
      hx[0].contiguous(),
      cell,
      mode,
      hidden,
      projection,
      layers,
      batch_first,
      /*dropout=*/0,
      train,
      bidirectional,
      /*batch_sizes=*/{},
      /*dropout_state=*/std::nullopt);
  return {output, state, cells};
}

Results lstm(
    const Tensor& given,
    at::TensorList hx,
    at::TensorList params,
    bool has_biases,
    int64_t layers,
    double dropout,
    bool train,
    bool bidirectional,
    bool batch_first) {
  if (fits_cudnn(given, hx, params, dropout, train)) {
    return cudnn_network(
        kLstm, given, hx, params, has_biases, layers, train, bidirectional, batch_first);
  }
  if (!fits_onednn(given, hx, params)) {
    return at::native::lstm(
        given, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first);
  }
  const auto hidden = hx[0].size(2);
  const int64_t directions = bidirectional ? 2 : 1;
  const int64_t per_direction = has_biases ? 4 : 2;
  auto input = batch_first ? given.transpose(0, 1) : given;
  input = input.contiguous();
  const auto before = hx[0].contiguous(), cells_before = hx[1].contiguous();
  std::vector<Tensor> after, cells_after;
  for (int64_t layer = 0; layer < layers; ++layer) {
    std::vector<Tensor> outputs;
    for (int64_t direction = 0; direction < directions; ++direction) {
      const auto number = layer * directions + direction;
      const auto weights = params.slice(number * per_direction, per_direction);
      const auto no_bias = has_biases ? Tensor() : at::zeros({4 * hidden}, weights[0].options());
      auto [output, state, cell, workspace] = at::mkldnn_rnn_layer(
          input,
          weights[0],
          weights[1],
          has_biases ? weights[2] : no_bias,
          has_biases ? weights[3] : no_bias,
          before[number],
          cells_before[number],
          /*reverse=*/direction == 1,
          /*batch_sizes=*/{},
          kLstm,
          hidden,
          layers,
          has_biases,
          bidirectional,
          batch_first,
          train);
      outputs.push_back(std::move(output));
      after.push_back(std::move(state));
      cells_after.push_back(std::move(cell));
    }
    input = directions == 1 ? outputs[0] : at::cat(outputs, -1);
    if (dropout != 0 && train && layer + 1 < layers) {
      input = at::dropout(input, dropout, /*train=*/true);
    }
  }
  return {
      batch_first ? input.transpose(0, 1) : input, at::stack(after, 0), at::stack(cells_after, 0)};
}

using Network = std::tuple<Tensor, Tensor>(
    const Tensor&, const Tensor&, at::TensorList, bool, int64_t, double, bool, bool, bool);

// A network with one state, by cuDNN or as PyTorch puts it together.
template <Mode mode, Network* otherwise>
std::tuple<Tensor, Tensor> network(
    const Tensor& input,
    const Tensor& hx,
    at::TensorList params,
    bool has_biases,
    int64_t layers,
    double dropout,
    bool train,
    bool bidirectional,
    bool batch_first) {
  if (!fits_cudnn(input, hx, params, dropout, train)) {
    return otherwise(
        input, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first);
  }
  auto [output, state, cells] =
      cudnn_network(mode, input, hx, params, has_biases, layers, train, bidirectional, batch_first);
  return {output, state};
}

}  // namespace
}  // namespace tiny

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("lstm.input", &tiny::lstm);
  m.impl("gru.input", &tiny::network<tiny::kGru, &at::native::gru>);
  m.impl("rnn_tanh.input", &tiny::network<tiny::kTanh, &at::native::rnn_tanh>);
  m.impl("rnn_relu.input", &tiny::network<tiny::kRelu, &at::native::rnn_relu>);
}
