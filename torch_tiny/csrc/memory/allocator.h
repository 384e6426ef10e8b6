// Where PyTorch asks for memory: on the CPU from the cache, while our kernels run; on "tiny" never,
// since storages get theirs when they are computed.
#pragma once

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

// On all devices.
void empty_cache();

}  // namespace tiny
