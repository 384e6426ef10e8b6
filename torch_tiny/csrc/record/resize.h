// Changing the size of tensors and storages on device "tiny".
#pragma once

#include <ATen/core/Tensor.h>

namespace tiny {

// Gives the tensor these sizes and strides, and its storage enough bytes for them.
void resize_tensor(const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides);

// Grows or shrinks the storage; what is kept keeps its values.
void resize_storage(const c10::Storage& storage, size_t nbytes);

// From now on the storage cannot be resized, nor by an operator's out=.
void fix_size(const c10::Storage& storage);

}  // namespace tiny
