#include "memory/storage.h"

#include <ATen/EmptyTensor.h>

#include <cstdlib>
#include <mutex>
#include <utility>

#include "base/failure.h"
#include "memory/allocator.h"
#include "memory/shared.h"

namespace tiny {
namespace {

// Memory of dropped storages, kept by each thread for its next ones.
class Pool {
 public:
  ~Pool() {
    while (first_ != nullptr) {
      std::free(std::exchange(first_, first_->next));
    }
    closed_ = true;
  }
  void* take() {
    if (first_ == nullptr) {
      return std::malloc(sizeof(TinyStorage));
    }
    --count_;
    return std::exchange(first_, first_->next);
  }
  void give(void* memory) {
    if (closed_ || count_ >= kMost) {
      return std::free(memory);
    }
    ++count_;
    first_ = new (memory) Node{first_};
  }

 private:
  struct Node {
    Node* next;
  };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  static constexpr size_t kMost = 0;  // they follow memory from malloc to free
#else
  static constexpr size_t kMost = 8192;
#endif
  Node* first_ = nullptr;
  size_t count_ = 0;
  bool closed_ = false;  // the thread is ending
};

thread_local Pool pool;

c10::DispatchKeySet keys_of(c10::Device device) {
  return c10::DispatchKeySet(
      device.is_cpu()        ? c10::DispatchKey::CPU
          : device.is_cuda() ? c10::DispatchKey::CUDA
                             : c10::DispatchKey::Meta);
}

at::Tensor strided_tensor(
    c10::Storage storage,
    c10::DispatchKeySet keys,
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides,
    int64_t offset,
    c10::ScalarType dtype) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), keys, c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

c10::intrusive_ptr<c10::StorageImpl> create_storage(
    c10::StorageImpl::use_byte_size_t /*unused*/,
    c10::SymInt size_bytes,
    c10::DataPtr data,
    c10::Allocator* /*allocator*/,
    bool /*resizable*/) {
  check_usable();
  TORCH_CHECK(data.get() == nullptr, "tiny: a storage cannot be made from foreign memory");
  const auto device = data.device().type() == kTiny ? data.device().index() : current_device();
  return c10::make_intrusive<TinyStorage>(
      device, static_cast<size_t>(size_bytes.guard_int(__FILE__, __LINE__)));
}

// Keeps the tiny storage alive, and marked as exported, as long as the outside view lives.
struct Export {
  c10::Storage storage;
  ~Export() {
    static_cast<TinyStorage*>(storage.unsafeGetStorageImpl())->exports.fetch_sub(1);
  }
};

}  // namespace

TinyStorage::TinyStorage(c10::DeviceIndex device, size_t nbytes)
    : c10::StorageImpl(
          use_byte_size_t(),
          static_cast<int64_t>(nbytes),
          c10::DataPtr(nullptr, c10::Device(kTiny, device)),
          c10::GetAllocator(kTiny),
          /*resizable=*/true) {}

void* TinyStorage::operator new(size_t /*size*/) {
  auto* memory = pool.take();
  TORCH_CHECK(memory != nullptr, "out of memory");
  return memory;
}

void TinyStorage::operator delete(void* memory) {
  pool.give(memory);
}

void TinyStorage::release_resources() {
  c10::StorageImpl::release_resources();
  host_ = {};
  drop_own_buffer();
}

void TinyStorage::drop_own_buffer() {
  if (C10_UNLIKELY(buffer_ != 0)) {
    drop_buffer(device().index(), buffer_, buffer_bytes_);
    buffer_ = 0;
    in_buffer_ = false;
  }
}

const c10::Storage& TinyStorage::memory(Access access) {
  if (C10_UNLIKELY(failure != nullptr)) {
    raise_failure(failure);
  }
  const auto make = [&] {
    if (!host_) {
      auto made = c10::Storage(allocate_host(device().index(), nbytes()));
      made.unsafeGetStorageImpl()->set_resizable(!is_shared_);
      host_ = std::move(made);
      refresh();
    }
  };
  if (host_device(device().index()).is_cuda()) {
    // Two threads may come here at once: nothing runs that they would wait for.
    static auto* making = new std::mutex;
    const std::lock_guard lock(*making);
    make();
  } else {
    make();
  }
  if (C10_UNLIKELY(in_buffer_)) {
    if (is_shared_ && !in_host_) {
      note_on_host(*this);
    }
    if (!in_host_ && access != Access::kOverwrite && nbytes() != 0) {
      portable_functions().download(device().index(), buffer_, host_.mutable_data(), nbytes());
      note_traffic("download", nbytes());
    }
    in_host_ = true;
    in_buffer_ = access == Access::kRead;
  }
  return host_;
}

Buffer TinyStorage::buffer() {
  if (C10_UNLIKELY(failure != nullptr)) {
    raise_failure(failure);
  }
  if (!in_buffer_) {
    const auto bytes = nbytes();
    const auto& host = memory(Access::kRead);
    if (buffer_bytes_ != bytes) {  // an operator on the host has resized it
      drop_own_buffer();
    }
    const bool is_new = buffer_ == 0;
    buffer_ = portable_functions().upload(device().index(), buffer_, host.data(), bytes);
    if (is_new) {
      buffer_bytes_ = bytes;
      count_buffer(device().index(), bytes);
    }
    note_traffic("upload", bytes);
    in_buffer_ = true;
  }
  return buffer_;
}

void TinyStorage::adopt_buffer(Buffer buffer) {
  if (buffer != buffer_) {
    drop_own_buffer();
    is_shared_ = false;
    buffer_ = buffer;
    buffer_bytes_ = nbytes();
    count_buffer(device().index(), buffer_bytes_);
  }
  in_buffer_ = true;
  in_host_ = false;
  host_ = {};
  set_data_ptr_noswap(c10::DataPtr(nullptr, device()));
}

void TinyStorage::adopt(c10::Storage host) {
  host_ = std::move(host);
  in_host_ = true;
  in_buffer_ = false;
  refresh();
}

uintptr_t TinyStorage::share() {
  if (is_portable(device().index())) {
    buffer();
    in_host_ = false;
    host_ = {};
    set_data_ptr_noswap(c10::DataPtr(nullptr, device()));
  } else {
    memory().unsafeGetStorageImpl()->set_resizable(false);
  }
  is_shared_ = true;
  return shared_memory();
}

uintptr_t TinyStorage::shared_memory() const {
  if (!is_shared_) {
    return 0;
  }
  return buffer_ != 0 ? static_cast<uintptr_t>(buffer_) : reinterpret_cast<uintptr_t>(data());
}

void TinyStorage::leave_host() {
  if (is_shared_) {
    buffer();
    in_host_ = false;
  }
}

void TinyStorage::refresh() {
  if (host_) {
    set_data_ptr_noswap(c10::DataPtr(host_.mutable_data(), device()));
    if (nbytes() != host_.nbytes()) {  // recorders read it while results arrive
      set_nbytes(host_.nbytes());
    }
  }
}

void TinyStorage::resize(size_t size) {
  if (nbytes() == 0) {
    host_ = {};
    drop_own_buffer();
  }
  if (host_ || in_buffer_) {
    const auto old = memory();
    drop_own_buffer();
    auto grown = c10::Storage(allocate_host(device().index(), size));
    const auto kept = static_cast<int64_t>(std::min(size, old.nbytes()));
    if (kept > 0) {
      auto bytes = [kept](const c10::Storage& storage) {
        return host_tensor(storage, {kept}, {1}, 0, c10::kByte, false, false);
      };
      bytes(grown).copy_(bytes(old));
    }
    adopt(std::move(grown));
  } else {
    set_nbytes(size);
  }
}

void install_storage() {
  c10::SetStorageImplCreate(kTiny, &create_storage);
}

at::Tensor make_tensor(
    c10::DeviceIndex device,
    size_t nbytes,
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides,
    int64_t offset,
    c10::ScalarType dtype) {
  return tensor_over(
      c10::Storage(c10::make_intrusive<TinyStorage>(device, nbytes)),
      sizes,
      strides,
      offset,
      dtype);
}

at::Tensor tensor_over(
    c10::Storage storage,
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides,
    int64_t offset,
    c10::ScalarType dtype) {
  return strided_tensor(
      std::move(storage),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      sizes,
      strides,
      offset,
      dtype);
}

at::Tensor make_alias(
    const at::Tensor& base,
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides,
    int64_t offset,
    c10::ScalarType dtype) {
  check_type(base.device().index(), dtype);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW,
      c10::Storage(base.storage()),
      base.key_set(),
      c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

at::Tensor host_tensor(const at::Tensor& tensor, Access access) {
  return host_tensor(
      TinyStorage::of(tensor).memory(access),
      tensor.sizes(),
      tensor.strides(),
      tensor.storage_offset(),
      tensor.scalar_type(),
      tensor.is_conj(),
      tensor.is_neg());
}

at::Tensor host_tensor(
    const c10::Storage& memory,
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides,
    int64_t offset,
    c10::ScalarType dtype,
    bool conj,
    bool neg) {
  auto tensor = strided_tensor(memory, keys_of(memory.device()), sizes, strides, offset, dtype);
  if (C10_UNLIKELY(conj)) {
    tensor._set_conj(true);
  }
  if (C10_UNLIKELY(neg)) {
    tensor._set_neg(true);
  }
  return tensor;
}

at::Tensor exported_tensor(const at::Tensor& tensor) {
  auto& storage = TinyStorage::of(tensor);
  const auto memory = storage.memory();
  storage.exports.fetch_add(1);
  auto* held = new Export{tensor.storage()};
  auto data = c10::DataPtr(
      memory.mutable_data(),
      held,
      [](void* p) { delete static_cast<Export*>(p); },
      memory.device());
  auto outside = c10::Storage(
      c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(),
          static_cast<int64_t>(memory.nbytes()),
          std::move(data),
          /*allocator=*/nullptr,
          /*resizable=*/false));
  return host_tensor(
      outside,
      tensor.sizes(),
      tensor.strides(),
      tensor.storage_offset(),
      tensor.scalar_type(),
      tensor.is_conj(),
      tensor.is_neg());
}

at::Tensor adopt_tensor(c10::DeviceIndex device, const at::Tensor& host) {
  check_type(device, host.scalar_type());
  auto tensor = make_tensor(
      device,
      host.storage().nbytes(),
      host.sizes(),
      host.strides(),
      host.storage_offset(),
      host.scalar_type());
  TinyStorage::of(tensor).adopt(host.storage());
  if (host.is_conj()) {
    tensor._set_conj(true);
  }
  if (host.is_neg()) {
    tensor._set_neg(true);
  }
  return tensor;
}

}  // namespace tiny
