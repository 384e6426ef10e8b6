// Putting the recorder behind PyTorch's operators.
#pragma once

namespace tiny {

// Registers the recorder by name for the operators whose composite kernel would hide a kernel of
// the CPU's or CUDA's own.
void install_operators();

}  // namespace tiny
