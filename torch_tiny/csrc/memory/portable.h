// Portable devices: memory and kernels are tinygrad's, reached through Python; the core knows
// buffers by number. Where an operator is not compiled for them, it runs on the CPU with copies.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/device.h"
#include "base/source_line.h"

namespace tiny {

// A buffer of a portable device; 0 is none.
using Buffer = int64_t;

// The Python functions behind a portable device. Each takes the GIL, none may hold a lock that is
// waited for with the GIL held.
struct PortableFunctions {
  // Fills a buffer with bytes of the host; makes it first if it is none.
  std::function<Buffer(c10::DeviceIndex, Buffer, const void*, size_t)> upload;
  std::function<void(c10::DeviceIndex, Buffer, void*, size_t)> download;
  // Runs a program on buffers and numbers, each eight bytes. The new content of what it writes, or
  // nothing if a call would raise.
  std::function<std::optional<std::vector<Buffer>>(
      c10::DeviceIndex, int64_t, const std::vector<Buffer>&, const std::vector<std::string>&)>
      run;
  std::function<void(c10::DeviceIndex)> wait;
  // Gives back memory that is kept for the next buffers.
  std::function<void(c10::DeviceIndex)> empty_cache;
  // Tells the user, once per operator, that it runs on the host.
  std::function<void(c10::DeviceIndex, const std::string&, const SourceLine&)> warn;
};
PortableFunctions& portable_functions();

// A buffer could not be made.
class DeviceMemoryError : public c10::OutOfMemoryError {
 public:
  DeviceMemoryError(const std::string& message, size_t bytes)
      : c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message),
        nbytes(bytes) {}
  size_t nbytes;  // what was asked for
};

// Buffers and programs that nobody needs any more. They are freed by whoever enters Python next:
// tensors are dropped by threads that must not ask for the GIL.
void drop_buffer(c10::DeviceIndex index, Buffer buffer, size_t nbytes);
void drop_program(int64_t program);
std::vector<Buffer> dropped_buffers(c10::DeviceIndex index);
std::vector<int64_t> dropped_programs();

// A compiled region of a portable device.
struct PortableProgram {
  explicit PortableProgram(int64_t given) : number(given) {}
  ~PortableProgram() {
    drop_program(number);
  }
  PortableProgram(const PortableProgram&) = delete;
  PortableProgram& operator=(const PortableProgram&) = delete;
  const int64_t number;
};

// Bytes that were moved between the host and a device, and by which lines.
struct Traffic {
  uint64_t count = 0;
  uint64_t bytes = 0;
};
struct PortableCounts {
  std::map<std::pair<std::string, SourceLine>, Traffic> traffic;  // ("upload" or "download", line)
  std::map<std::pair<std::string, SourceLine>, uint64_t> fallbacks;  // (operator, line)
};
PortableCounts portable_counts();
void reset_portable_counts();

void count_buffer(c10::DeviceIndex index, size_t nbytes);
void note_traffic(const char* direction, size_t nbytes);
c10::CachingDeviceAllocator::DeviceStats portable_memory_stats(c10::DeviceIndex index);
void reset_portable_peaks(c10::DeviceIndex index);

// Counts a call that runs on the host, warns of it once per operator, or refuses it.
void note_fallback(c10::DeviceIndex index, const std::string& op, const SourceLine& place);
void refuse_fallbacks(bool refuse);
bool are_fallbacks_refused();

}  // namespace tiny
