// PyTorch's random operators on the portable stream: kernels for cpu memory, and the operators that
// are made of others.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

#include "random/philox.h"

namespace tiny {

struct PortableKernel {
  // Raises PyTorch's errors about the numbers of a call; called when it is recorded.
  void (*check)(c10::ArrayRef<c10::IValue> arguments);
  // Runs on tensors of the memory's device and leaves the result on the stack.
  void (*run)(c10::Stack& stack, const Draw& draw);
};

// Null where the operator has none: it draws from a generator of the memory's device instead.
const PortableKernel* portable_kernel(const std::string& name);

// Registers operators that are made of others, so that only a few have to know the stream.
void install_portable_random();

}  // namespace tiny
