// A compiled plan: the calls of a trace as steps, each one operator call or one fused region that
// runs either as PyTorch's own operators or as compiled kernels, whichever was measured faster.
#pragma once

#include <c10/core/ScalarType.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/choice.h"
#include "memory/cuda_driver.h"
#include "memory/portable.h"

namespace tiny {

// A function of a shared object that lives as long as its code does.
struct Kernel {
  using Function = void (*)(void* const* buffers, int64_t begin, int64_t end);
  std::string name;
  Function function = nullptr;
  std::vector<int> buffers;  // >= 0: of the region; -1-k: its temporary k
  int64_t parallel = 1;      // extent of the loop that begin and end cut
  int64_t work = 0;          // rough bytes and operations
  CudaLaunch launch;         // on CUDA memory, in place of the function
};

// Where a kernel finds a buffer: the memory of a slot, or a number that came with a call.
struct RegionBuffer {
  bool is_slot = true;
  uint32_t slot = 0;
  size_t offset = 0;  // bytes
  uint32_t call = 0;
  uint32_t value = 0;
  int32_t item = -1;  // of a list of numbers
  bool is_written = false;
  bool is_read = true;  // on a portable device, where memory would have to be uploaded
  c10::ScalarType dtype = c10::ScalarType::Undefined;

  bool operator==(const RegionBuffer&) const = default;
};

// How many codes a process keeps loaded: each takes three of the 65,530 mappings that it may have.
// For more, plans go that were not used for longest.
inline std::atomic<size_t> most_codes{8192};

// What a region runs, and what is known of its speed: shared by all regions that compute the same.
struct Code {
  std::vector<RegionBuffer> buffers;  // in numbers of its own for slots and calls
  std::vector<uint32_t> made;         // such slots
  std::vector<Kernel> kernels;
  // Kernels that tell whether no call would raise, as a bool in a buffer after the last.
  std::vector<Kernel> guard;
  std::vector<size_t> temporaries;          // offsets into the arena
  size_t arena = 0;                         // bytes
  std::vector<std::pair<int, int>> copies;  // temporary -> buffer, at the end
  std::vector<size_t> copy_bytes;
  Choice choice;
  std::shared_ptr<void> library;
  std::shared_ptr<CudaLibrary> cuda;  // on CUDA memory
};

struct Region {
  std::string name;
  std::string key;              // of its code
  std::vector<uint32_t> calls;  // what it stands for, in order
  std::vector<RegionBuffer> buffers;
  std::vector<uint32_t> made;  // slots that come to exist here and are used afterwards
  std::shared_ptr<Code> code;
  std::shared_ptr<PortableProgram> portable;  // on a portable device, in place of the code
};

struct Step {
  int32_t call = -1;
  int32_t region = -1;
  std::vector<uint32_t> release;  // slots that no later step needs
};

struct Compiled {
  std::vector<Step> steps;
  std::vector<Region> regions;
};

}  // namespace tiny
