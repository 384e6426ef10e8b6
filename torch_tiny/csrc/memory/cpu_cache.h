// Memory of the host: large blocks are kept and handed out again, because fresh pages from the
// system cost several times what writing the result does.
#pragma once

#include <c10/core/Allocator.h>

#include <atomic>

#include "memory/kind.h"

namespace tiny {

c10::DataPtr allocate_cached(size_t bytes);
void release_cached(void* data);
// Whether it is from here. Any address may be asked for.
bool is_cached(void* data);
// What every block is filled with when it is handed out, lest a test should find there what was
// right before; negative: nothing.
inline std::atomic<int> filling{-1};

// What there is of it, or what a container may use.
size_t physical_memory();

class CpuMemory : public MemoryKind {
 public:
  Stats stats(c10::DeviceIndex index) const override;
  void reset_peaks(c10::DeviceIndex index) const override;
  void reset_accumulated(c10::DeviceIndex index) const override;
  std::pair<size_t, size_t> free_and_all(c10::DeviceIndex index) const override;
  void empty_cache(c10::DeviceIndex index) const override;
  size_t limit(c10::DeviceIndex index) const override;
};

}  // namespace tiny
