// Linear algebra that PyTorch composes of what some devices do not have.
#pragma once

namespace tiny {

// Registers it: tolerances in the type of the matrix where there is no float64, least squares
// whole on portable devices.
void install_matrix_functions();

}  // namespace tiny
