// Random numbers of a tiny device: a generator of the memory's own device behind a tiny face.
#pragma once

#include <ATen/core/Generator.h>

#include "device.h"

namespace tiny {

const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator make_generator(c10::DeviceIndex index);

// What the kernels draw from: behind the default generator of tiny:index, or behind this one.
at::Generator host_generator(c10::DeviceIndex index);
at::Generator host_generator(const at::Generator& generator);

}  // namespace tiny
