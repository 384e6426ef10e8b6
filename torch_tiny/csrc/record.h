// The recorder: one boxed kernel for every operator on a tiny tensor.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace tiny {

// Notes the call in the trace of its device and returns tensors that are still to be computed.
void record(const c10::OperatorHandle& op, c10::Stack* stack);

}  // namespace tiny
