// Operators on lists of tensors (_foreach_...): what they do at one place of their lists has
// nothing to do with the others.
#pragma once

#include "core/signature.h"

namespace tiny {

// The length of all lists that a call takes and returns. 0 if it takes anything else that is not
// the same for all.
size_t length_of(const Signature& signature, const c10::IValue* values);

// What a call would return, from trying it with made-up data at places that look different. False
// if that is not possible, or as much work as the call.
bool infer_lists(Signature& signature, const Arguments& arguments);

}  // namespace tiny
