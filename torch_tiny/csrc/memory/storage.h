// A tiny storage: an ordinary PyTorch storage whose memory appears when it is first computed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <exception>

#include "base/device.h"
#include "memory/portable.h"

namespace tiny {

// What a kernel of the host is about to do with memory.
enum class Access : uint8_t {
  kRead,
  kWrite,      // some of it; the rest stays
  kOverwrite,  // all of it
};

class TinyStorage final : public c10::StorageImpl {
 public:
  TinyStorage(c10::DeviceIndex device, size_t nbytes);
  ~TinyStorage() override {
    drop_own_buffer();
  }

  // Made and dropped by the thousand in each run: the C library's lists are too short for that.
  static void* operator new(size_t size);
  static void operator delete(void* memory);

  static TinyStorage& of(const at::TensorBase& tensor) {
    return *static_cast<TinyStorage*>(tensor.storage().unsafeGetStorageImpl());
  }

  void release_resources() override;

  // The memory that PyTorch's kernels work on, made now if there is none yet. Raises if computing
  // it failed. On a portable device it is a copy on the host, brought up to date here.
  const c10::Storage& memory(Access access = Access::kWrite);
  // Takes over the memory of a result.
  void adopt(c10::Storage host);

  // On a portable device: the buffer, brought up to date.
  Buffer buffer();
  // The buffer that a program has to leave all of its new content in; 0 if any will do.
  Buffer home() const {
    return is_shared_ ? buffer_ : 0;
  }
  // Takes over a buffer that a program has written, all of it. One that is not its home means that
  // nobody else looks at that any more.
  void adopt_buffer(Buffer buffer);
  // After the host storage was resized behind our back.
  void refresh();
  void resize(size_t nbytes);

  // See shared.h. Both return the number of the buffer, or the address of the memory.
  uintptr_t share();
  uintptr_t shared_memory() const;
  bool is_shared() const {
    return is_shared_;
  }
  // Of a shared buffer, the copy on the host: sent home if it is newer, and not trusted any more.
  void leave_host();

  // Where this storage stands in the trace that is being recorded; guarded by the queue's mutex.
  uint64_t trace = 0;
  uint32_t slot = 0;

  // How many numpy arrays and the like look at this memory from outside.
  std::atomic<int> exports{0};

  // Why there is no value, if the operator that should have made it failed.
  std::exception_ptr failure;
  // The same where a write failed: what was there before stays.
  void fail_if_empty(const std::exception_ptr& why) {
    failure = host_ || in_buffer_ ? failure : why;
  }

 private:
  void drop_own_buffer();

  c10::Storage host_;
  // On a portable device the content is in host_, in buffer_, or in both.
  Buffer buffer_ = 0;
  size_t buffer_bytes_ = 0;
  bool in_host_ = true;
  bool in_buffer_ = false;
  bool is_shared_ = false;
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

// A tensor on a tiny storage.
at::Tensor tensor_over(
    c10::Storage storage,
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
at::Tensor host_tensor(const at::Tensor& tensor, Access access = Access::kWrite);
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
