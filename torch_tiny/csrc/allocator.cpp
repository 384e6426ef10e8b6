#include "allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cgroup.h"
#include "device.h"
#include "portable.h"

namespace tiny {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;
using Aggregated = c10::CachingAllocator::StatType;

constexpr size_t kHeader = 64;              // the data stays aligned to a cache line
constexpr size_t kAlignment = 2 * kHeader;  // of the header, so that data is in the same page
constexpr uint64_t kOurs = 0x74696e7974696e79;
// Below this the C library keeps memory too; above it gives memory back and faults it in again.
constexpr size_t kSmallest = size_t{1} << 12;
constexpr size_t kHugePage = size_t{1} << 21;

// Fresh memory comes in small pages: to find huge ones may take the kernel ten times as long, and
// most blocks are not used often enough for that.
constexpr size_t kUsesForHugePages = 3;

void use_huge_pages(void* base, size_t size) {
#ifdef MADV_COLLAPSE
  madvise(base, size, MADV_COLLAPSE);
#else
  madvise(base, size, MADV_HUGEPAGE);
#endif
}

thread_local bool from_cache = false;

struct Header {
  size_t requested;
  size_t reserved;
  uint64_t mark;  // kOurs mixed with the address, while the block is in use
  size_t uses;
};

uint64_t mark_of(const void* data) {
  return kOurs ^ reinterpret_cast<uintptr_t>(data);
}

Header& header_of(void* data) {
  return *reinterpret_cast<Header*>(static_cast<char*>(data) - kHeader);
}

// Some kernels allocate without saying who frees. Our data lies at odd multiples of the header's
// size, where the memory before it can always be read, whatever sanitizers say.
__attribute__((no_sanitize("address"), no_sanitize("thread"))) bool is_ours(void* data) {
  return reinterpret_cast<uintptr_t>(data) % kAlignment == kHeader &&
      header_of(data).mark == mark_of(data);
}

// An eighth of a power of two: at most 12.5 % is wasted and sizes repeat often.
size_t rounded(size_t bytes) {
  if (bytes < kSmallest) {
    return bytes;
  }
  const size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

// What there is of it, or what a container may use.
size_t physical_memory() {
  static const size_t bytes = std::min(
      static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE)),
      memory_limit_of_groups("/proc/self/cgroup", "/sys/fs/cgroup"));
  return bytes;
}

// One atomic operation each way: what there is now is a difference.
struct Counter {
  std::atomic<int64_t> peak{0}, allocated{0}, freed{0}, forgotten_allocated{0}, forgotten_freed{0};

  void add(int64_t amount) {
    const auto all = allocated.fetch_add(amount, std::memory_order_relaxed) + amount;
    const auto now = all - freed.load(std::memory_order_relaxed);
    auto seen = peak.load(std::memory_order_relaxed);
    while (now > seen && !peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
    }
  }
  void remove(int64_t amount) {
    freed.fetch_add(amount, std::memory_order_relaxed);
  }
  int64_t current() const {
    return allocated - freed;
  }
  void reset_peak() {
    peak = current();
  }
  void reset_accumulated() {
    forgotten_allocated = allocated.load();
    forgotten_freed = freed.load();
  }
  c10::CachingAllocator::Stat stat() const {
    c10::CachingAllocator::Stat result;
    result.current = current();
    result.peak = peak;
    result.allocated = allocated - forgotten_allocated;
    result.freed = freed - forgotten_freed;
    return result;
  }
};

// Small blocks that were dropped, kept by each thread for its next ones: asking the C library for
// aligned memory takes longer than adding up what is in it.
class SmallBlocks {
 public:
  ~SmallBlocks() {
    for (auto& first : free_) {
      while (first != nullptr) {
        std::free(std::exchange(first, first->next));
      }
    }
    left_ = 0;
  }
  // Of at least so many bytes; null if there is none.
  void* take(size_t size) {
    auto& first = free_[place(size)];
    if (first == nullptr) {
      return nullptr;
    }
    left_ += bytes(size);
    return std::exchange(first, first->next);
  }
  bool keep(void* base, size_t size) {
    if (left_ < bytes(size)) {
      return false;
    }
    left_ -= bytes(size);
    auto& first = free_[place(size)];
    first = new (base) Node{first};
    return true;
  }
  static size_t bytes(size_t size) {
    return (place(size) + 1) * kHeader;
  }

 private:
  struct Node {
    Node* next;
  };
  static size_t place(size_t size) {
    return (size - 1) / kHeader;
  }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  static constexpr size_t kMost = 0;  // they follow memory from malloc to free
#else
  static constexpr size_t kMost = size_t{1} << 18;
#endif
  std::array<Node*, kSmallest / kHeader> free_{};
  size_t left_ = kMost;  // bytes that may still be kept; none once the thread is ending
};

thread_local SmallBlocks small_blocks;

class Cache {
 public:
  static Cache& get() {
    static auto* cache = new Cache;
    return *cache;
  }

  c10::DataPtr allocate(size_t bytes) {
    if (bytes == 0) {
      return {nullptr, c10::Device(c10::kCPU)};
    }
    const size_t size = rounded(bytes + kHeader);
    auto* base = size < kSmallest ? small(size, bytes) : take(size);
    size_t uses = 1;
    if (base == nullptr) {
      base = fresh(size, bytes);
      reserved.add(static_cast<int64_t>(size));
    } else if (size >= kSmallest) {
      uses += static_cast<Header*>(base)->uses;
    }
    if (uses == kUsesForHugePages && size >= 2 * kHugePage) {
      use_huge_pages(base, size);
    }
    auto* data = static_cast<char*>(base) + kHeader;
    new (base) Header{bytes, size, mark_of(data), uses};
    allocations.add(1);
    allocated.add(static_cast<int64_t>(size));
    requested.add(static_cast<int64_t>(bytes));
    return {data, data, &Cache::release, c10::Device(c10::kCPU)};
  }

  static void release(void* data) {
    auto& cache = get();
    auto& header = header_of(data);
    header.mark = 0;
    const auto [requested, size, mark, uses] = header;
    auto* base = static_cast<void*>(&header);
    cache.allocations.remove(1);
    cache.allocated.remove(static_cast<int64_t>(size));
    cache.requested.remove(static_cast<int64_t>(requested));
    if (size >= kSmallest && !in_bad_fork() && cache.keep(base, size)) {
      return;
    }
    cache.reserved.remove(static_cast<int64_t>(size));
    if (size >= kSmallest || !small_blocks.keep(base, size)) {
      std::free(base);
    }
  }

  void empty() {
    std::map<size_t, std::vector<void*>> blocks;
    {
      std::lock_guard lock(mutex_);
      blocks.swap(free_);
      cached_ = 0;
    }
    for (auto& [size, list] : blocks) {
      for (auto* base : list) {
        std::free(base);
        reserved.remove(static_cast<int64_t>(size));
      }
    }
  }

  Counter allocations, allocated, reserved, requested;
  std::atomic<int64_t> retries{0}, ooms{0};

 private:
  // Whoever frees must not hear of errors: where there is no memory to note it, it is given back.
  bool keep(void* base, size_t size) noexcept {
    std::lock_guard lock(mutex_);
    if (cached_ + size > physical_memory() / 4) {
      return false;
    }
    try {
      free_[size].push_back(base);
    } catch (const std::bad_alloc&) {
      return false;
    }
    cached_ += size;
    return true;
  }

  void* take(size_t size) {
    std::lock_guard lock(mutex_);
    auto found = free_.find(size);
    if (found == free_.end() || found->second.empty()) {
      return nullptr;
    }
    auto* base = found->second.back();
    found->second.pop_back();
    cached_ -= size;
    return base;
  }

  void* small(size_t size, size_t bytes) {
    auto* kept = small_blocks.take(size);
    auto* base = kept != nullptr ? kept : fresh(SmallBlocks::bytes(size), bytes);
    reserved.add(static_cast<int64_t>(size));
    return base;
  }

  void* fresh(size_t size, size_t bytes) {
    void* base = nullptr;
    const size_t alignment = size >= 2 * kHugePage ? kHugePage : kAlignment;
    if (posix_memalign(&base, alignment, size) != 0) {
      retries.fetch_add(1);
      empty();
      if (posix_memalign(&base, alignment, size) != 0) {
        ooms.fetch_add(1);
        // PyTorch's own allocator fails in the words that users know from the CPU.
        c10::GetDefaultCPUAllocator()->allocate(bytes).clear();
        TORCH_CHECK(false, "tiny: can't allocate ", bytes, " bytes of memory");
      }
    }
    return base;
  }

  std::mutex mutex_;
  std::map<size_t, std::vector<void*>> free_;
  size_t cached_ = 0;
};

struct CpuAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    return from_cache ? Cache::get().allocate(bytes)
                      : c10::GetDefaultCPUAllocator()->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return [](void* data) {
      if (is_ours(data)) {
        Cache::release(data);
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

c10::DeviceAllocator* host_allocator(c10::DeviceIndex index) {
  const auto host = host_device(index);
  return host.type() == c10::kCPU ? nullptr : c10::getDeviceAllocator(host.type());
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
    return memory_stats(index);
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    reset_accumulated_memory_stats(index);
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    reset_peak_memory_stats(index);
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    if (auto* host = host_allocator(index)) {
      return host->getMemoryInfo(host_device(index).index());
    }
    const auto available = static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) *
        static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
    return {std::min(available, physical_memory()), physical_memory()};
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

DeviceStats memory_stats(c10::DeviceIndex index) {
  if (is_portable(index)) {
    return portable_memory_stats(index);
  }
  if (auto* host = host_allocator(index)) {
    return host->getDeviceStats(host_device(index).index());
  }
  constexpr auto aggregate = static_cast<size_t>(Aggregated::AGGREGATE);
  auto& cache = Cache::get();
  DeviceStats stats;
  stats.allocation[aggregate] = cache.allocations.stat();
  stats.active[aggregate] = cache.allocations.stat();
  stats.allocated_bytes[aggregate] = cache.allocated.stat();
  stats.active_bytes[aggregate] = cache.allocated.stat();
  stats.reserved_bytes[aggregate] = cache.reserved.stat();
  stats.requested_bytes[aggregate] = cache.requested.stat();
  stats.num_alloc_retries = cache.retries;
  stats.num_ooms = cache.ooms;
  return stats;
}

void reset_peak_memory_stats(c10::DeviceIndex index) {
  if (is_portable(index)) {
    return reset_portable_peaks(index);
  }
  if (auto* host = host_allocator(index)) {
    return host->resetPeakStats(host_device(index).index());
  }
  auto& cache = Cache::get();
  for (auto* counter : {&cache.allocations, &cache.allocated, &cache.reserved, &cache.requested}) {
    counter->reset_peak();
  }
}

void reset_accumulated_memory_stats(c10::DeviceIndex index) {
  if (auto* host = host_allocator(index)) {
    return host->resetAccumulatedStats(host_device(index).index());
  }
  auto& cache = Cache::get();
  for (auto* counter : {&cache.allocations, &cache.allocated, &cache.reserved, &cache.requested}) {
    counter->reset_accumulated();
  }
}

void empty_cache() {
  Cache::get().empty();
  for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
    if (is_portable(index)) {
      portable_functions().empty_cache(index);
    } else if (auto* host = host_allocator(index)) {
      host->emptyCache();
    }
  }
}

size_t memory_limit(c10::DeviceIndex index) {
  return host_device(index).type() == c10::kCPU ? physical_memory() : SIZE_MAX;
}

void check_memory(c10::DeviceIndex index, size_t nbytes) {
  TORCH_CHECK_WITH(
      OutOfMemoryError,
      !is_portable(index) || nbytes <= memory_limit(index),
      c10::Device(kTiny, index),
      " (",
      device_name(index),
      ") out of memory. Tried to allocate ",
      nbytes >> 20,
      " MiB");
}

}  // namespace tiny
