#include "memory/cpu_cache.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/cgroup.h"
#include "base/device.h"

namespace tiny {
namespace {

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

// An eighth of a power of two: at most 12.5 % is wasted and sizes repeat often.
size_t rounded(size_t bytes) {
  if (bytes < kSmallest) {
    return bytes;
  }
  const size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
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
    if (const auto byte = filling.load(std::memory_order_relaxed); C10_UNLIKELY(byte >= 0)) {
      std::memset(data, byte, bytes);
    }
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

  std::array<Counter*, 4> counters() {
    return {&allocations, &allocated, &reserved, &requested};
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

}  // namespace

c10::DataPtr allocate_cached(size_t bytes) {
  return Cache::get().allocate(bytes);
}

void release_cached(void* data) {
  Cache::release(data);
}

// Some kernels allocate without saying who frees. Our data lies at odd multiples of the header's
// size, where the memory before it can always be read, whatever sanitizers say.
__attribute__((no_sanitize("address"), no_sanitize("thread"))) bool is_cached(void* data) {
  return reinterpret_cast<uintptr_t>(data) % kAlignment == kHeader &&
      header_of(data).mark == mark_of(data);
}

size_t physical_memory() {
  static const size_t bytes = std::min(
      static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE)),
      memory_limit_of_groups("/proc/self/cgroup", "/sys/fs/cgroup"));
  return bytes;
}

CpuMemory::Stats CpuMemory::stats(c10::DeviceIndex /*index*/) const {
  constexpr auto aggregate = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  auto& cache = Cache::get();
  Stats stats;
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

void CpuMemory::reset_peaks(c10::DeviceIndex /*index*/) const {
  for (auto* counter : Cache::get().counters()) {
    counter->reset_peak();
  }
}

void CpuMemory::reset_accumulated(c10::DeviceIndex /*index*/) const {
  for (auto* counter : Cache::get().counters()) {
    counter->reset_accumulated();
  }
}

std::pair<size_t, size_t> CpuMemory::free_and_all(c10::DeviceIndex /*index*/) const {
  const auto available =
      static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
  return {std::min(available, physical_memory()), physical_memory()};
}

void CpuMemory::empty_cache(c10::DeviceIndex /*index*/) const {
  Cache::get().empty();
}

size_t CpuMemory::limit(c10::DeviceIndex /*index*/) const {
  return physical_memory();
}

}  // namespace tiny
