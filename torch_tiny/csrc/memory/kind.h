// What the kinds of memory behind the tiny devices do each in their own way.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <utility>

namespace tiny {

class MemoryKind {
 public:
  using Stats = c10::CachingDeviceAllocator::DeviceStats;

  virtual ~MemoryKind() = default;
  virtual Stats stats(c10::DeviceIndex index) const = 0;
  virtual void reset_peaks(c10::DeviceIndex index) const = 0;
  virtual void reset_accumulated(c10::DeviceIndex index) const = 0;
  virtual std::pair<size_t, size_t> free_and_all(c10::DeviceIndex index) const = 0;
  virtual void empty_cache(c10::DeviceIndex index) const = 0;
  // Bytes above which there is no point in trying.
  virtual size_t limit(c10::DeviceIndex index) const = 0;
  // Raises where a kernel that wants more would not raise by itself.
  virtual void check(c10::DeviceIndex /*index*/, size_t /*nbytes*/) const {}
  // Until all that was asked of it is done.
  virtual void wait(c10::DeviceIndex /*index*/) const {}
};

// Of tiny:index.
const MemoryKind& memory_of(c10::DeviceIndex index);

}  // namespace tiny
