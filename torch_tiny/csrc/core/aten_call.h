// Calling an operator on the memory behind a tiny device: PyTorch's own kernels, below autograd.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <vector>

#include "base/device.h"
#include "core/signature.h"
#include "memory/allocator.h"

namespace tiny {

// While it lives, operators called on this thread go straight to the kernels of the host device,
// whatever autograd, autocast, functorch or Python modes were active when the trace had to run.
class HostScope {
 public:
  explicit HostScope(c10::DeviceIndex index);

 private:
  AllocateFromCache allocate_;
  c10::InferenceMode no_inference_mode_;
  c10::AutoGradMode no_grad_;
  c10::impl::ForceDispatchKeyGuard keys_;
  c10::OptionalDeviceGuard device_;
};

// Whether a result lies in the same memory as another one, or as something that the operator keeps.
inline bool shares_memory(const at::Tensor& result) {
  return result.storage().use_count() != 1;
}

// A copy of a CPU tensor that nobody else can change.
at::Tensor copy_on_host(const at::Tensor& tensor);

// Appends the arguments of a call to `stack`: `tensor(i)` gives the i-th tiny tensor's stand-in,
// `values` is where the call's own values begin, `device` stands in for the tiny device.
template <typename TensorOf>
void push_arguments(
    c10::Stack& stack,
    const Signature& signature,
    const c10::IValue* values,
    const TensorOf& tensor,
    c10::Device device) {
  size_t next_tensor = 0;
  const auto& tokens = signature.tokens;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto& token = tokens[i];
    switch (token.kind) {
      case Token::Kind::kTensor:
        stack.emplace_back(tensor(next_tensor++));
        break;
      case Token::Kind::kValue:
        stack.emplace_back(*values++);
        break;
      case Token::Kind::kConstant:
        if (C10_UNLIKELY(token.constant.isDevice())) {
          const auto given = token.constant.toDevice();
          stack.emplace_back(given.type() == kTiny ? device : given);
        } else {
          stack.emplace_back(token.constant);
        }
        break;
      case Token::Kind::kNoTensor:
        stack.emplace_back(at::Tensor());
        break;
      case Token::Kind::kTensorList: {
        c10::List<at::Tensor> list;
        list.reserve(token.count);
        for (uint32_t k = 0; k < token.count; ++k) {
          const auto& item = tokens[++i];
          list.push_back(
              item.kind == Token::Kind::kTensor      ? tensor(next_tensor++)
                  : item.kind == Token::Kind::kValue ? (values++)->toTensor()
                                                     : at::Tensor());
        }
        stack.emplace_back(std::move(list));
        break;
      }
      case Token::Kind::kOptionalTensorList: {
        c10::List<std::optional<at::Tensor>> list;
        list.reserve(token.count);
        for (uint32_t k = 0; k < token.count; ++k) {
          const auto& item = tokens[++i];
          if (item.kind == Token::Kind::kTensor) {
            list.push_back(tensor(next_tensor++));
          } else if (item.kind == Token::Kind::kValue) {
            list.push_back((values++)->toTensor());
          } else {
            list.push_back(std::nullopt);
          }
        }
        stack.emplace_back(std::move(list));
        break;
      }
    }
  }
}

// Runs an operator that draws random numbers, or may, on those that its call was given.
void call_with_numbers(const Operator& op, c10::DeviceIndex index, c10::Stack& stack);

// For an operator that takes no generator: what a call on this thread draws from while it lives.
class HiddenNumbers {
 public:
  explicit HiddenNumbers(const c10::IValue& numbers);
  ~HiddenNumbers();
  HiddenNumbers(const HiddenNumbers&) = delete;
  HiddenNumbers& operator=(const HiddenNumbers&) = delete;

 private:
  const c10::IValue* before_;
};

// Drops the warnings of an operator.
void call_silently(const Operator& op, c10::Stack& stack);

inline void call_aten(const Operator& op, c10::DeviceIndex index, c10::Stack& stack) {
  TORCH_CHECK(!op.is_gone.load(std::memory_order_relaxed), op.name, " was deregistered unrun");
  if (C10_UNLIKELY(
          op.generator >= 0 || op.draws_hidden(torch::jit::last(stack, op.writes.size())))) {
    call_with_numbers(op, index, stack);
  } else if (C10_UNLIKELY(op.warns_in_vain)) {
    call_silently(op, stack);
  } else if (C10_UNLIKELY(op.asks_grad_mode)) {
    const c10::AutoGradMode grad(true);  // a backward pass may have been recorded after it
    op.handle.callBoxed(stack);
  } else {
    op.handle.callBoxed(stack);
  }
}

}  // namespace tiny
