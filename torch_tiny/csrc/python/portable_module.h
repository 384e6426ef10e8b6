// Binds the functions behind portable devices.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace tiny {

void bind_portable(pybind11::module& m);

// What was moved and what ran on the host, for the metrics.
void add_portable_counts(pybind11::dict& metrics);

}  // namespace tiny
