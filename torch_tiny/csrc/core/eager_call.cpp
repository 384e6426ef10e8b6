#include "core/eager_call.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty_strided.h>

#include "core/arguments.h"
#include "core/aten_call.h"
#include "memory/storage.h"
#include "random/generator.h"

namespace tiny {
namespace {

class EagerCall {
 public:
  EagerCall(Operator& op, c10::DeviceIndex device)
      : op_(op), device_(device), host_(host_device(device)) {}

  c10::IValue to_host(const c10::IValue& value, bool generator, bool written) {
    access_ = written ? Access::kWrite : Access::kRead;
    if (value.isDevice() && value.toDevice().type() == kTiny) {
      return host_;
    }
    if (value.isGenerator()) {
      return numbers_of(value.toGenerator());
    }
    if (generator && value.isNone()) {
      return numbers_of(device_);
    }
    return map_tensors(value, [&](const at::Tensor& tensor) { return to_host(tensor); });
  }

  c10::IValue to_tiny(const c10::IValue& value) {
    return map_tensors(value, [&](const at::Tensor& tensor) { return to_tiny(tensor); });
  }

  // An operator may have resized what it wrote to.
  void write_back() {
    for (auto& [tiny, host] : pairs_) {
      auto& storage = TinyStorage::of(tiny);
      const auto* memory = storage.memory(Access::kRead).unsafeGetStorageImpl();
      if (host.storage().unsafeGetStorageImpl() != memory) {
        storage.adopt(host.storage());
      } else {
        storage.refresh();
      }
      if (tiny.sizes() != host.sizes() || tiny.strides() != host.strides() ||
          tiny.storage_offset() != host.storage_offset()) {
        tiny.unsafeGetTensorImpl()->set_sizes_and_strides(
            host.sizes(), host.strides(), host.storage_offset());
      }
    }
  }

 private:
  at::Tensor to_host(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device().type() != kTiny) {
      return tensor;
    }
    check_layout(tensor);
    for (const auto& [tiny, host] : pairs_) {
      if (tiny.is_same(tensor)) {
        TinyStorage::of(tensor).memory(access_);
        return host;
      }
    }
    pairs_.emplace_back(tensor, host_tensor(tensor, access_));
    return pairs_.back().second;
  }

  at::Tensor to_tiny(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return tensor;
    }
    check_layout(tensor);
    if (tensor.device() != host_) {
      return tensor;
    }
    for (const auto& [tiny, host] : pairs_) {
      if (tensor.is_same(host)) {
        return tiny;
      }
    }
    for (const auto& [tiny, host] : pairs_) {
      if (tensor.storage().is_alias_of(host.storage())) {
        return make_alias(
            tiny, tensor.sizes(), tensor.strides(), tensor.storage_offset(), tensor.scalar_type());
      }
    }
    return adopt_tensor(device_, shares_memory(tensor) ? own_copy(tensor) : tensor);
  }

  // cuDNN returns the gradients of all weights in one piece.
  at::Tensor own_copy(const at::Tensor& tensor) const {
    const HostScope scope(device_);
    if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
      return tensor.clone();
    }
    return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).copy_(tensor);
  }

  void check_layout(const at::Tensor& tensor) const {
    TORCH_CHECK_NOT_IMPLEMENTED(
        tensor.layout() == c10::kStrided && !tensor.is_quantized() && tensor.has_storage(),
        op_.name,
        " takes or returns a ",
        tensor.is_quantized() ? std::string("quantized") : c10::str(tensor.layout()),
        " tensor, which device 'tiny' does not have; move the tensor to the CPU with .cpu() first");
  }

  Operator& op_;
  const c10::DeviceIndex device_;
  const c10::Device host_;
  Access access_ = Access::kRead;                         // of the argument at hand
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;  // tiny tensor and its stand-in
};

}  // namespace

void call_eagerly(Operator& op, c10::DeviceIndex device, c10::Stack* stack) {
  const auto count = op.writes.size();
  EagerCall call(op, device);
  c10::Stack host_stack;
  const auto arguments = torch::jit::last(*stack, count);
  for (size_t i = 0; i < count; ++i) {
    host_stack.push_back(call.to_host(arguments[i], op.takes_generator[i], op.writes[i]));
  }
  {
    HostScope scope(device);
    call_aten(op, device, host_stack);
    call.write_back();
  }
  // Outside of it: a result made in inference mode is an inference tensor.
  torch::jit::drop(*stack, count);
  for (const auto& value : host_stack) {
    stack->push_back(call.to_tiny(value));
  }
}

}  // namespace tiny
