// Memory of a GPU, which PyTorch's own allocator has.
#pragma once

#include "memory/kind.h"

namespace tiny {

class CudaMemory : public MemoryKind {
 public:
  Stats stats(c10::DeviceIndex index) const override;
  void reset_peaks(c10::DeviceIndex index) const override;
  void reset_accumulated(c10::DeviceIndex index) const override;
  std::pair<size_t, size_t> free_and_all(c10::DeviceIndex index) const override;
  void empty_cache(c10::DeviceIndex index) const override;
  size_t limit(c10::DeviceIndex index) const override;
  void wait(c10::DeviceIndex index) const override;
};

}  // namespace tiny
