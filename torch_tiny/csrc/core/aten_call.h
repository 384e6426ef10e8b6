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

// Whether a result lies in the same memory as another one, or as another tensor that the operator
// keeps.
inline bool shares_memory(const at::Tensor& result) {
  return result.storage().use_count() != 1;
}

// A copy of a CPU tensor that nobody else can change.
at::Tensor copy_on_host(const at::Tensor& tensor);

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
