#include "memory/cuda_memory.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <limits>

#include "base/device.h"

namespace tiny {
namespace {

c10::DeviceAllocator& allocator_of(c10::DeviceIndex index) {
  return *c10::getDeviceAllocator(host_device(index).type());
}

}  // namespace

CudaMemory::Stats CudaMemory::stats(c10::DeviceIndex index) const {
  return allocator_of(index).getDeviceStats(host_device(index).index());
}

void CudaMemory::reset_peaks(c10::DeviceIndex index) const {
  allocator_of(index).resetPeakStats(host_device(index).index());
}

void CudaMemory::reset_accumulated(c10::DeviceIndex index) const {
  allocator_of(index).resetAccumulatedStats(host_device(index).index());
}

std::pair<size_t, size_t> CudaMemory::free_and_all(c10::DeviceIndex index) const {
  return allocator_of(index).getMemoryInfo(host_device(index).index());
}

void CudaMemory::empty_cache(c10::DeviceIndex index) const {
  allocator_of(index).emptyCache();
}

size_t CudaMemory::limit(c10::DeviceIndex /*index*/) const {
  return std::numeric_limits<size_t>::max();
}

void CudaMemory::wait(c10::DeviceIndex index) const {
  const auto host = host_device(index);
  c10::impl::VirtualGuardImpl(host.type()).synchronizeDevice(host.index());
}

}  // namespace tiny
