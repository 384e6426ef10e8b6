// Memory of a portable device: buffers of tinygrad's, with copies on the host where that is needed.
#pragma once

#include "memory/cpu_cache.h"

namespace tiny {

class PortableMemory final : public CpuMemory {
 public:
  Stats stats(c10::DeviceIndex index) const override;
  void reset_peaks(c10::DeviceIndex index) const override;
  void empty_cache(c10::DeviceIndex index) const override;
  void check(c10::DeviceIndex index, size_t nbytes) const override;
  void wait(c10::DeviceIndex index) const override;
};

}  // namespace tiny
