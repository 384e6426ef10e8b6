// Operators that are made of others in Python on some devices (torch_tiny/composed).
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>
#include <tuple>
#include <vector>

namespace tiny {

// The operator, where it is made of others, and what makes it.
using ComposedRow = std::tuple<std::string, std::string, pybind11::function>;

void install_composed(const std::vector<ComposedRow>& rows);

}  // namespace tiny
