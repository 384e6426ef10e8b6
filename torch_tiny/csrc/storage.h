// A tiny storage: an ordinary PyTorch storage whose memory appears when it is first computed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <exception>

#include "device.h"

namespace tiny {

class TinyStorage final : public c10::StorageImpl {
 public:
  TinyStorage(c10::DeviceIndex device, size_t nbytes);

  // Made and dropped by the thousand in each run: the C library's lists are too short for that.
  static void* operator new(size_t size);
  static void operator delete(void* memory);

  static TinyStorage& of(const at::TensorBase& tensor) {
    return *static_cast<TinyStorage*>(tensor.storage().unsafeGetStorageImpl());
  }

  void release_resources() override;

  // The memory, made now if there is none yet. Raises if computing it failed.
  const c10::Storage& memory();
  bool has_memory() const {
    return static_cast<bool>(host_);
  }
  // Takes over the memory of a result.
  void adopt(c10::Storage host);
  // After the host storage was resized behind our back.
  void refresh();
  void resize(size_t nbytes);

  // Where this storage stands in the trace that is being recorded; guarded by the queue's mutex.
  uint64_t trace = 0;
  uint32_t slot = 0;

  // How many numpy arrays and the like look at this memory from outside.
  std::atomic<int> exports{0};

  // Why there is no value, if the operator that should have made it failed.
  std::exception_ptr failure;

 private:
  c10::Storage host_;
};

// Puts TinyStorage behind every storage PyTorch makes for device "tiny".
void install_storage();

// A tensor without memory, for a result that is still to be computed.
at::Tensor make_tensor(
    c10::DeviceIndex device,
    size_t nbytes,
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides,
    int64_t offset,
    c10::ScalarType dtype);

// Another tensor on the storage of `base`.
at::Tensor make_alias(
    const at::Tensor& base,
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides,
    int64_t offset,
    c10::ScalarType dtype);

// A CPU or CUDA tensor on the memory of a tiny tensor. The trace must have been run.
at::Tensor host_tensor(const at::Tensor& tensor);
at::Tensor host_tensor(
    const c10::Storage& memory,
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides,
    int64_t offset,
    c10::ScalarType dtype,
    bool conj,
    bool neg);

// The same, kept by someone outside: until it dies, operators on this storage run at once.
at::Tensor exported_tensor(const at::Tensor& tensor);

// Wraps a CPU or CUDA result without a copy.
at::Tensor adopt_tensor(c10::DeviceIndex device, const at::Tensor& host);

}  // namespace tiny
