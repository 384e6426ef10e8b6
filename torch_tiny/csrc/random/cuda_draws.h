// Numbers of the portable stream, drawn on a GPU by kernels that engine/cuda_random.py compiles.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "random/philox.h"

namespace tiny {

// What a kernel is given beside the draw; each takes what it needs.
struct DrawNumbers {
  double a = 0, b = 0;
  uint64_t range = 0;
  int64_t first = 0;
  int bits = 24;
  at::Tensor chances;
};

// Fills a tensor on a GPU, whatever its strides. The kernel computes in `computed`, a float32,
// float64 or int64; another type of the tensor is converted from that.
void draw_on_gpu(
    const std::string& kernel,
    at::ScalarType computed,
    const at::Tensor& out,
    const Draw& draw,
    const DrawNumbers& numbers);

// Gives the machine code of the kernels for a GPU. Set once; called without the GIL.
void set_random_kernels(std::function<std::string(c10::DeviceIndex)> machine_code);

}  // namespace tiny
