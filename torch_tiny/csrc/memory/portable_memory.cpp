#include "memory/portable_memory.h"

#include "base/device.h"
#include "memory/portable.h"

namespace tiny {

PortableMemory::Stats PortableMemory::stats(c10::DeviceIndex index) const {
  return portable_memory_stats(index);
}

void PortableMemory::reset_peaks(c10::DeviceIndex index) const {
  reset_portable_peaks(index);
}

void PortableMemory::empty_cache(c10::DeviceIndex index) const {
  portable_functions().empty_cache(index);
}

void PortableMemory::check(c10::DeviceIndex index, size_t nbytes) const {
  TORCH_CHECK_WITH(
      OutOfMemoryError,
      nbytes <= limit(index),
      c10::Device(kTiny, index),
      " (",
      device_name(index),
      ") out of memory. Tried to allocate ",
      nbytes >> 20,
      " MiB");
}

void PortableMemory::wait(c10::DeviceIndex index) const {
  portable_functions().wait(index);
}

}  // namespace tiny
