// A trace as text, for the compiler: JSON that says everything but data.
#pragma once

#include <string>

#include "plan/plan.h"

namespace tiny {

std::string describe(const Trace& trace, const Plan& plan);

}  // namespace tiny
