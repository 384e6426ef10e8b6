// The recorder again, for the most common shapes of operators, without boxing their arguments:
// a boxed tensor costs two trips through the GIL when Python holds it.
#pragma once

#include <torch/library.h>

#include "core/operator.h"

namespace tiny {

// Registers an unboxed recorder if there is one for operators of this form, and again in place of
// autograd's kernel, for calls that autograd has nothing to do with.
bool register_unboxed(
    torch::Library& library, torch::Library& autograd, const c10::OperatorHandle& op);

// The second alone, for an operator that comes to be recorded by a way of its own.
void register_before_autograd(torch::Library& autograd, const c10::OperatorHandle& op);

}  // namespace tiny
