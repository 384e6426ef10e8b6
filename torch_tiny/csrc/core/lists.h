// Operators on lists of tensors (_foreach_...): what they do at one place of their lists has
// nothing to do with the others.
#pragma once

#include "core/signature.h"

namespace tiny {

// The items of a list from one place to another; anything else is the same for all.
c10::IValue part_of(const c10::IValue& value, size_t begin, size_t end);

// What a call would return, from trying it with made-up data at places that look different. False
// if that is not possible, or as much work as the call.
bool infer_lists(
    Signature& signature, c10::ArrayRef<c10::IValue> given, const Arguments& arguments);

}  // namespace tiny
