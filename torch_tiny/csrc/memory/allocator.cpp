#include "memory/allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>

#include <map>
#include <mutex>
#include <utility>

#include "base/device.h"
#include "memory/cpu_cache.h"

namespace tiny {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;

thread_local bool from_cache = false;

struct CpuAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    return from_cache ? allocate_cached(bytes) : c10::GetDefaultCPUAllocator()->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return [](void* data) {
      if (is_cached(data)) {
        release_cached(data);
      } else {
        c10::GetDefaultCPUAllocator()->raw_deleter()(data);
      }
    };
  }
  void copy_data(void* dest, const void* src, size_t count) const override {
    default_copy_data(dest, src, count);
  }
};

CpuAllocator& cpu_allocator() {
  static auto* allocator = new CpuAllocator;
  return *allocator;
}

struct TinyAllocator final : c10::DeviceAllocator {
  // Storages get their memory when they are computed, so nothing is allocated here.
  c10::DataPtr allocate(size_t /*bytes*/) override {
    return {nullptr, c10::Device(kTiny, current_device())};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }
  void copy_data(void* /*dest*/, const void* /*src*/, size_t /*count*/) const override {
    TORCH_CHECK(false, "tiny: copy tensors, not raw memory");
  }
  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t /*pool*/ = {0, 0}) override {
    empty_cache();
  }
  void recordStream(const c10::DataPtr& /*ptr*/, c10::Stream /*stream*/) override {}
  DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    return memory_of(index).stats(index);
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    memory_of(index).reset_accumulated(index);
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    memory_of(index).reset_peaks(index);
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    return memory_of(index).free_and_all(index);
  }
};

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto memory = c10::GetDefaultCPUAllocator()->allocate(bytes);
    auto* data = memory.get();
    auto* held = new c10::DataPtr(std::move(memory));
    std::lock_guard lock(mutex);
    blocks[data] = bytes;
    return {data, held, &PinnedAllocator::release, c10::Device(c10::kCPU)};
  }
  static void release(void* context) {
    auto* held = static_cast<c10::DataPtr*>(context);
    {
      auto& self = *static_cast<PinnedAllocator*>(pinned_allocator());
      std::lock_guard lock(self.mutex);
      self.blocks.erase(held->get());
    }
    delete held;
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }
  void copy_data(void* dest, const void* src, size_t count) const override {
    default_copy_data(dest, src, count);
  }

  std::mutex mutex;
  std::map<const void*, size_t> blocks;
};

}  // namespace

AllocateFromCache::AllocateFromCache() : previous_(from_cache) {
  from_cache = true;
}

AllocateFromCache::~AllocateFromCache() {
  from_cache = previous_;
}

void install_allocator() {
  static auto* tiny_allocator = new TinyAllocator;
  c10::SetAllocator(kTiny, tiny_allocator, 1);
  c10::SetCPUAllocator(&cpu_allocator(), 1);
}

c10::intrusive_ptr<c10::StorageImpl> allocate_host(c10::DeviceIndex index, size_t nbytes) {
  const auto host = host_device(index);
  AllocateFromCache guard;
  c10::OptionalDeviceGuard on_host;
  if (host.type() != c10::kCPU) {
    on_host.reset_device(host);
  }
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      static_cast<int64_t>(nbytes),
      c10::GetAllocator(host.type()),
      /*resizable=*/true);
}

c10::Allocator* pinned_allocator() {
  static auto* allocator = new PinnedAllocator;
  return allocator;
}

bool is_pinned(const void* data) {
  auto& pinned = *static_cast<PinnedAllocator*>(pinned_allocator());
  std::lock_guard lock(pinned.mutex);
  auto after = pinned.blocks.upper_bound(data);
  if (after == pinned.blocks.begin()) {
    return false;
  }
  const auto& [begin, bytes] = *std::prev(after);
  return data == begin || data < static_cast<const char*>(begin) + bytes;
}

void empty_cache() {
  CpuMemory().empty_cache(0);  // all devices have copies on the host
  for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
    memory_of(index).empty_cache(index);
  }
}

}  // namespace tiny
