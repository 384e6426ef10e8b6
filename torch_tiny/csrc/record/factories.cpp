// The operators that only make tensors or change their metadata; nothing here is recorded.
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include "memory/allocator.h"
#include "memory/kind.h"
#include "memory/storage.h"
#include "record/resize.h"
#include "run/queue.h"

namespace tiny {
namespace {

void check_factory(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      c10::layout_or_default(layout) == c10::kStrided,
      "device 'tiny' has strided tensors only; got layout ",
      *layout);
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

at::Tensor finish_empty(at::Tensor tensor) {
  // More than there is fails now, and not when it is first used.
  const auto index = tensor.device().index();
  if (tensor.storage().nbytes() > memory_of(index).limit(index)) {
    memory_of(index).check(index, tensor.storage().nbytes());
    TinyStorage::of(tensor).memory();
  }
  if (C10_UNLIKELY(
          at::globalContext().deterministicAlgorithms() &&
          at::globalContext().deterministicFillUninitializedMemory())) {
    at::native::fill_empty_deterministic_(tensor);
  }
  return tensor;
}

at::Tensor empty_strided(
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pin_memory) {
  ensure_ready();
  check_factory(layout, pin_memory);
  at::native::check_size_nonnegative(sizes);
  TORCH_CHECK(
      sizes.size() == strides.size(),
      "dimensionality of sizes (",
      sizes.size(),
      ") must match dimensionality of strides (",
      strides.size(),
      ")");
  const auto type = c10::dtype_or_default(dtype);
  const auto nbytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(type));
  const auto index = with_index(c10::device_or_default(device)).index();
  check_type(index, type);
  return finish_empty(make_tensor(index, nbytes, sizes, strides, 0, type));
}

at::Tensor empty(
    c10::IntArrayRef sizes,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pin_memory,
    std::optional<c10::MemoryFormat> format) {
  ensure_ready();
  check_factory(layout, pin_memory);
  at::native::check_size_nonnegative(sizes);
  const auto type = c10::dtype_or_default(dtype);
  const auto nbytes = at::detail::computeStorageNbytesContiguous(sizes, c10::elementSize(type));
  const auto index = with_index(c10::device_or_default(device)).index();
  check_type(index, type);
  auto tensor = make_tensor(index, nbytes, {0}, {1}, 0, type);
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  const auto wanted = format.value_or(c10::MemoryFormat::Contiguous);
  TORCH_CHECK(
      wanted != c10::MemoryFormat::Preserve,
      "memory format option is only supported by strided tensors");
  if (wanted != c10::MemoryFormat::Contiguous) {
    impl->empty_tensor_restride(wanted);
  }
  return finish_empty(std::move(tensor));
}

const at::Tensor& resize_(
    const at::Tensor& self, c10::IntArrayRef sizes, std::optional<c10::MemoryFormat> format) {
  at::native::check_size_nonnegative(sizes);
  if (self.sizes() != sizes) {
    at::DimVector strides(sizes.size());
    int64_t next = 1;
    for (size_t i = sizes.size(); i-- > 0;) {
      strides[i] = next;
      next *= std::max<int64_t>(sizes[i], 1);
    }
    resize_tensor(self, sizes, strides);
  }
  if (format.has_value()) {
    TORCH_CHECK(*format != c10::MemoryFormat::Preserve, "Unsupported memory format", *format);
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return self;
}

at::Tensor& set_storage_offset(
    at::Tensor& self,
    at::Storage source,
    int64_t offset,
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides) {
  at::DimVector kept;
  if (strides.data() == nullptr || (strides.empty() && !sizes.empty())) {
    // As on the CPU: strides that nobody asked for change only with the sizes.
    kept = self.sizes() == sizes ? at::DimVector(self.strides())
                                 : at::DimVector(c10::contiguous_strides(sizes));
    strides = kept;
  }
  TORCH_CHECK(
      source.device().type() != kTiny ||
          dynamic_cast<TinyStorage*>(source.unsafeGetStorageImpl()) != nullptr,
      "this storage on device 'tiny' has no memory: it belongs to a fake or functional tensor");
  const auto nbytes =
      at::detail::computeStorageNbytes(sizes, strides, self.dtype().itemsize(), offset);
  at::native::checkSetStorage(self, source, offset, sizes, strides);
  if (c10::multiply_integers(sizes) > 0 && nbytes > self.storage().nbytes()) {
    resize_storage(self.storage(), nbytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto items = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage_offset(self, std::move(source), 0, {items}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.is_same(source)) {
    return self;
  }
  return set_storage_offset(
      self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  auto storage = c10::Storage(c10::make_intrusive<TinyStorage>(self.device().index(), 0));
  return set_storage_offset(self, std::move(storage), 0, {0}, {});
}

// Autograd's stand-in for zeros: no memory, and a key that keeps it away from our kernels.
at::Tensor zero_tensor(
    c10::IntArrayRef sizes,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> /*layout*/,
    std::optional<c10::Device> device,
    std::optional<bool> /*pin_memory*/) {
  const auto index = with_index(c10::device_or_default(device)).index();
  const auto type = c10::dtype_or_default(dtype);
  const auto nbytes = at::detail::computeStorageNbytesContiguous(sizes, c10::elementSize(type));
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::make_intrusive<TinyStorage>(index, nbytes)),
      c10::DispatchKeySet({c10::DispatchKey::PrivateUse1, c10::DispatchKey::ZeroTensor}),
      c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

at::Tensor as_strided(
    const at::Tensor& self,
    c10::IntArrayRef size,
    c10::IntArrayRef stride,
    std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

bool is_set_to(const at::Tensor& self, const at::Tensor& other) {
  return self.storage().is_alias_of(other.storage()) &&
      self.storage_offset() == other.storage_offset() && self.sizes() == other.sizes() &&
      self.strides() == other.strides();
}

// Memory is freed in the order of the one queue, whatever stream uses it.
void record_stream(at::Tensor& /*self*/, c10::Stream /*stream*/) {}

}  // namespace
}  // namespace tiny

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &tiny::empty);
  m.impl("empty_strided", &tiny::empty_strided);
  m.impl("resize_", &tiny::resize_);
  m.impl("set_.source_Storage", &tiny::set_storage);
  m.impl("set_.source_Storage_storage_offset", &tiny::set_storage_offset);
  m.impl("set_.source_Tensor", &tiny::set_tensor);
  m.impl("set_", &tiny::set_nothing);
  m.impl("is_set_to", &tiny::is_set_to);
  m.impl("record_stream", &tiny::record_stream);
  m.impl("_efficientzerotensor", &tiny::zero_tensor);
  m.impl("as_strided", &tiny::as_strided);
  m.impl("view", [](const at::Tensor& self, c10::IntArrayRef size) {
    return at::native::view(self, size);
  });
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
}
