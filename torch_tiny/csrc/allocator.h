// A caching allocator for cpu memory: large blocks are kept and handed out again, because fresh
// pages from the system cost several times what writing the result does.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StorageImpl.h>

namespace tiny {

// While one lives on a thread, PyTorch's CPU kernels on that thread allocate from our cache.
class AllocateFromCache {
 public:
  AllocateFromCache();
  ~AllocateFromCache();
  AllocateFromCache(const AllocateFromCache&) = delete;
  AllocateFromCache& operator=(const AllocateFromCache&) = delete;

 private:
  bool previous_;
};

// Puts the allocator in front of PyTorch's CPU allocator and behind device "tiny".
void install_allocator();

// A host storage of this many bytes on the memory of tiny:index.
c10::intrusive_ptr<c10::StorageImpl> allocate_host(c10::DeviceIndex index, size_t nbytes);

// CPU memory handed out for pin_memory(); it is plain memory, but is_pinned() knows it.
c10::Allocator* pinned_allocator();
bool is_pinned(const void* data);

c10::CachingDeviceAllocator::DeviceStats memory_stats(c10::DeviceIndex index);
void reset_peak_memory_stats(c10::DeviceIndex index);
void reset_accumulated_memory_stats(c10::DeviceIndex index);
void empty_cache();

// More bytes than this cannot be had on tiny:index.
size_t memory_limit(c10::DeviceIndex index);
// On a portable device more than that raises, as its own allocator would; elsewhere kernels do.
void check_memory(c10::DeviceIndex index, size_t nbytes);

}  // namespace tiny
