// Why something has no value: an exception that can be raised any number of times.
#pragma once

#include <exception>

namespace tiny {

// The exception that is being handled, to be kept.
std::exception_ptr current_failure();

[[noreturn]] void raise_failure(const std::exception_ptr& failure);

}  // namespace tiny
