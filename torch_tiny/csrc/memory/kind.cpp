#include "memory/kind.h"

#include "base/device.h"
#include "memory/cpu_cache.h"
#include "memory/cuda_memory.h"
#include "memory/portable_memory.h"

namespace tiny {

const MemoryKind& memory_of(c10::DeviceIndex index) {
  static const CpuMemory cpu;
  static const CudaMemory cuda;
  static const PortableMemory portable;
  if (is_portable(index)) {
    return portable;
  }
  return host_device(index).type() == c10::kCPU ? static_cast<const MemoryKind&>(cpu) : cuda;
}

}  // namespace tiny
