// The Python face of the door to the compiler.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace tiny {

void bind_engine(pybind11::module& m);

}  // namespace tiny
