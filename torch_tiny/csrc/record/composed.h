// Operators that are made of others on some devices, and recorded on all others.
#pragma once

#include <ATen/core/boxing/impl/make_boxed_from_unboxed_functor.h>
#include <torch/library.h>

#include "record/record.h"

namespace tiny {

// Calls `kFunction` where `kApplies` says so of the arguments, and records the call elsewhere.
template <auto kFunction, bool (*kApplies)(c10::ArrayRef<c10::IValue>)>
void composed(const c10::OperatorHandle& op, c10::Stack* stack) {
  using Function =
      c10::CompileTimeFunctionPointer<std::remove_pointer_t<decltype(kFunction)>, kFunction>;
  using Functor = typename c10::impl::WrapFunctionIntoFunctor<Function>::type;
  if (!kApplies(torch::jit::last(*stack, op.schema().arguments().size()))) {
    return record(op, stack);
  }
  Functor functor;
  c10::impl::make_boxed_from_unboxed_functor<Functor, false>::call(
      &functor, op, c10::DispatchKeySet(), stack);
}

template <auto kFunction, bool (*kApplies)(c10::ArrayRef<c10::IValue>)>
torch::CppFunction composed_kernel() {
  return torch::CppFunction::makeFromBoxedFunction<&composed<kFunction, kApplies>>();
}

}  // namespace tiny
