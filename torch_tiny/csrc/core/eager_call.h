// Calling an operator on real memory now, for operators whose results cannot be foretold.
#pragma once

#include <ATen/core/stack.h>

#include "core/operator.h"

namespace tiny {

// Replaces the arguments on the stack by the results. The trace must have been run.
void call_eagerly(Operator& op, c10::DeviceIndex device, c10::Stack* stack);

}  // namespace tiny
