// Copies: within a device they are recorded; from and to other devices they cross memories.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/fill.h>
#include <ATen/ops/item.h>
#include <ATen/ops/resize.h>
#include <torch/library.h>

#include "core/aten_call.h"
#include "memory/storage.h"
#include "record/composed.h"
#include "record/record.h"
#include "run/queue.h"

namespace tiny {
namespace {

const c10::OperatorHandle& copy_operator() {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  return op;
}

bool is_tiny(const at::Tensor& tensor) {
  return tensor.device().type() == kTiny;
}

void record_copy(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  c10::Stack stack{to, from, non_blocking};
  record(copy_operator(), &stack);
}

bool covers_storage(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && tensor.nbytes() == tensor.storage().nbytes();
}

void copy_in(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  auto& queue = Queue::of(to.device().index());
  // Memory that no recorded call knows of can be written now; else the values wait for their turn.
  if (queue.is_pending(TinyStorage::of(to))) {
    return record_copy(to, from, non_blocking);
  }
  queue.run_if_pending(TinyStorage::of(to), "copy to the device", [&] {
    HostScope scope(to.device().index());
    host_tensor(to, covers_storage(to) ? Access::kOverwrite : Access::kWrite)
        .copy_(from, non_blocking);
  });
}

void copy_out(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  Queue::of(from.device().index()).run_if_pending(TinyStorage::of(from), "copy", [&] {
    HostScope scope(from.device().index());
    to.copy_(host_tensor(from, Access::kRead), non_blocking);
  });
}

// One device after the other: who waits for one while it keeps another from running may wait for a
// kernel there that uses this one. The memories' own devices know how to reach each other.
void copy_across(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  at::Tensor source;
  Queue::of(from.device().index()).run_then("copy between devices", [&] {
    const HostScope scope(from.device().index());
    source = host_tensor(from, Access::kRead);
  });
  Queue::of(to.device().index()).run_then("copy between devices", [&] {
    const HostScope scope(to.device().index());
    host_tensor(to, covers_storage(to) ? Access::kOverwrite : Access::kWrite)
        .copy_(source, non_blocking);
  });
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  ensure_ready();
  if (to.numel() == 0) {
    const auto common = at::infer_size(to.sizes(), from.sizes());
    const c10::IntArrayRef broadcast(common);
    TORCH_CHECK(
        to.sizes() == broadcast,
        "output with shape ",
        to.sizes(),
        " doesn't match the broadcast shape ",
        broadcast);
    return to;
  }
  if (!is_tiny(to)) {
    copy_out(to, from, non_blocking);
  } else if (!is_tiny(from)) {
    copy_in(to, from, non_blocking);
  } else if (to.device() == from.device()) {
    record_copy(to, from, non_blocking);
  } else {
    copy_across(to, from, non_blocking);
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Tensor& fill_from_device(at::Tensor& self, const at::Tensor& value) {
  TORCH_CHECK(
      value.dim() == 0,
      "fill_ only supports 0-dimension value tensor but got tensor with ",
      value.dim(),
      " dimensions.");
  return self.fill_(value.item());
}

bool fills_elsewhere(c10::ArrayRef<c10::IValue> arguments) {
  return !is_tiny(arguments[0].toTensor());
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  at::Scalar result;
  Queue::of(self.device().index()).run_if_pending(TinyStorage::of(self), "item", [&] {
    HostScope scope(self.device().index());
    result = at::_local_scalar_dense(host_tensor(self, Access::kRead));
  });
  return result;
}

}  // namespace
}  // namespace tiny

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", &tiny::copy_from);
  m.impl("_copy_from_and_resize", &tiny::copy_from_and_resize);
  m.impl("_local_scalar_dense", &tiny::local_scalar_dense);
  m.impl("fill_.Tensor", tiny::composed_kernel<&tiny::fill_from_device, &tiny::fills_elsewhere>());
}

// A copy minds the conjugate and negative bits itself, as copy_ does.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}
