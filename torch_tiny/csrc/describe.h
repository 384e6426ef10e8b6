// A trace as text, for the compiler: JSON that says everything but data.
#pragma once

#include <string>

#include "trace.h"

namespace tiny {

std::string describe(const Trace& trace, const Plan& plan);

}  // namespace tiny
