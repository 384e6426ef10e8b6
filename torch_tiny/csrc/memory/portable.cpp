#include "memory/portable.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <set>

namespace tiny {
namespace {

constexpr size_t kMostDevices = 128;

struct Memory {
  int64_t buffers = 0, bytes = 0, most_bytes = 0, most_buffers = 0;
  int64_t made = 0, made_bytes = 0;
};

// Never destroyed: tensors may be dropped while the process ends.
struct State {
  std::mutex mutex;
  std::array<std::vector<Buffer>, kMostDevices> buffers;
  std::vector<int64_t> programs;
  PortableCounts counts;
  std::set<std::string> warned;
  std::array<Memory, kMostDevices> memory;
};

State& state() {
  static auto* the = new State;
  return *the;
}

std::atomic<bool> refuses{false};

}  // namespace

PortableFunctions& portable_functions() {
  static auto* functions = new PortableFunctions;
  return *functions;
}

// Destructors call these: without memory for the note itself, what is dropped is never freed.
void drop_buffer(c10::DeviceIndex index, Buffer buffer, size_t nbytes) {
  std::lock_guard lock(state().mutex);
  auto& memory = state().memory.at(index);
  --memory.buffers;
  memory.bytes -= static_cast<int64_t>(nbytes);
  try {
    state().buffers.at(index).push_back(buffer);
  } catch (const std::bad_alloc&) {
    return;
  }
}

void drop_program(int64_t program) {
  std::lock_guard lock(state().mutex);
  try {
    state().programs.push_back(program);
  } catch (const std::bad_alloc&) {
    return;
  }
}

std::vector<Buffer> dropped_buffers(c10::DeviceIndex index) {
  std::lock_guard lock(state().mutex);
  return std::exchange(state().buffers.at(index), {});
}

std::vector<int64_t> dropped_programs() {
  std::lock_guard lock(state().mutex);
  return std::exchange(state().programs, {});
}

PortableCounts portable_counts() {
  std::lock_guard lock(state().mutex);
  return state().counts;
}

void reset_portable_counts() {
  std::lock_guard lock(state().mutex);
  state().counts = {};
}

void count_buffer(c10::DeviceIndex index, size_t nbytes) {
  std::lock_guard lock(state().mutex);
  auto& memory = state().memory.at(index);
  ++memory.buffers;
  ++memory.made;
  memory.bytes += static_cast<int64_t>(nbytes);
  memory.made_bytes += static_cast<int64_t>(nbytes);
  memory.most_bytes = std::max(memory.most_bytes, memory.bytes);
  memory.most_buffers = std::max(memory.most_buffers, memory.buffers);
}

void note_traffic(const char* direction, size_t nbytes) {
  const auto place = source_line();
  std::lock_guard lock(state().mutex);
  auto& traffic = state().counts.traffic[{direction, place}];
  ++traffic.count;
  traffic.bytes += nbytes;
}

c10::CachingDeviceAllocator::DeviceStats portable_memory_stats(c10::DeviceIndex index) {
  constexpr auto aggregate = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  std::lock_guard lock(state().mutex);
  const auto& memory = state().memory.at(index);
  c10::CachingAllocator::Stat bytes, buffers;
  bytes.current = memory.bytes;
  bytes.peak = memory.most_bytes;
  bytes.allocated = memory.made_bytes;
  bytes.freed = memory.made_bytes - memory.bytes;
  buffers.current = memory.buffers;
  buffers.peak = memory.most_buffers;
  buffers.allocated = memory.made;
  buffers.freed = memory.made - memory.buffers;
  c10::CachingDeviceAllocator::DeviceStats stats;
  stats.allocation[aggregate] = buffers;
  stats.active[aggregate] = buffers;
  for (auto* stat :
       {&stats.allocated_bytes,
        &stats.active_bytes,
        &stats.reserved_bytes,
        &stats.requested_bytes}) {
    (*stat)[aggregate] = bytes;
  }
  return stats;
}

void reset_portable_peaks(c10::DeviceIndex index) {
  std::lock_guard lock(state().mutex);
  auto& memory = state().memory.at(index);
  memory.most_bytes = memory.bytes;
  memory.most_buffers = memory.buffers;
}

void note_fallback(c10::DeviceIndex index, const std::string& op, const SourceLine& place) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !refuses.load(),
      op,
      " has no kernel on ",
      device_name(index),
      " and would run on the CPU, which TORCH_TINY_FALLBACK=error forbids");
  bool is_first = false;
  {
    std::lock_guard lock(state().mutex);
    ++state().counts.fallbacks[{op, place}];
    is_first = state().warned.insert(op).second;
  }
  if (is_first) {
    portable_functions().warn(index, op, place);
  }
}

void refuse_fallbacks(bool refuse) {
  refuses = refuse;
}

bool are_fallbacks_refused() {
  return refuses;
}

}  // namespace tiny
