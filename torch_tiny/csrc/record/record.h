// The recorder: one boxed kernel for every operator on a tiny tensor.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/FunctionRef.h>

#include "core/signature.h"

namespace tiny {

class Recording;

// Notes the call in the trace of its device and returns tensors that are still to be computed.
void record(const c10::OperatorHandle& op, c10::Stack* stack);

// Notes a call whose arguments were taken apart, if calls like it are known; `results` is called
// to make the tensors it returns. False if the call was not recorded.
bool record_known(
    Operator& op,
    Arguments& arguments,
    c10::function_ref<void(const Recording&, const Signature&)> results);

}  // namespace tiny
