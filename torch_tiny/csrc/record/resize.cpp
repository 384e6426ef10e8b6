#include "record/resize.h"

#include <ATen/EmptyTensor.h>
#include <c10/util/accumulate.h>

#include "memory/storage.h"
#include "run/queue.h"

namespace tiny {

void resize_storage(const c10::Storage& storage, size_t nbytes) {
  auto& tiny = *static_cast<TinyStorage*>(storage.unsafeGetStorageImpl());
  if (nbytes == tiny.nbytes()) {
    return;
  }
  TORCH_CHECK(tiny.resizable(), "Trying to resize storage that is not resizable");
  TORCH_CHECK(
      tiny.exports.load() == 0,
      "Trying to resize storage that is not resizable: a numpy array or a DLPack tensor shares it");
  TORCH_CHECK(
      !tiny.is_shared(),
      "Trying to resize storage that is not resizable: tinygrad shares its memory; resize a "
      "clone()");
  Queue::of(tiny.device().index()).run_if_pending(tiny, "resize", [&] { tiny.resize(nbytes); });
}

void fix_size(const c10::Storage& storage) {
  auto& tiny = *static_cast<TinyStorage*>(storage.unsafeGetStorageImpl());
  tiny.set_resizable(false);
  Queue::of(tiny.device().index()).run_if_pending(tiny, "a storage that keeps its size", [&] {
    tiny.memory(Access::kRead).unsafeGetStorageImpl()->set_resizable(false);
  });
}

void resize_tensor(const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  const auto itemsize = tensor.dtype().itemsize();
  const auto offset = tensor.storage_offset();
  const auto nbytes = at::detail::computeStorageNbytes(sizes, strides, itemsize, offset);
  // The storage comes first: running what was recorded may raise, and sizes must fit the memory.
  if (c10::multiply_integers(sizes) > 0 && nbytes > tensor.storage().nbytes()) {
    resize_storage(tensor.storage(), nbytes);
  }
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
}

}  // namespace tiny
