#include "core/infer.h"

#include <algorithm>
#include <unordered_map>

#include "core/arguments.h"
#include "core/aten_call.h"
#include "core/lists.h"
#include "memory/storage.h"

namespace tiny {
namespace {

constexpr size_t kMostRehearsed = size_t{4} << 20;  // bytes of a call

c10::Storage meta_storage(size_t nbytes) {
  return c10::Storage(
      c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(),
          static_cast<int64_t>(nbytes),
          c10::DataPtr(nullptr, c10::Device(c10::kMeta)),
          c10::GetAllocator(c10::kMeta),
          /*resizable=*/true));
}

c10::Storage filled_storage(const at::Tensor& like, int number) {
  const auto nbytes = like.storage().nbytes();
  auto storage = c10::Storage(allocate_host(like.device().index(), nbytes));
  const auto count = static_cast<int64_t>(nbytes / like.dtype().itemsize());
  host_tensor(storage, {count}, {1}, 0, like.scalar_type(), false, false).fill_(number);
  return storage;
}

// Of the arguments, or of them broadcast against each other: about what a call makes.
double rough_bytes(const Arguments& arguments) {
  double stored = 0, widest = 0;
  c10::SmallVector<int64_t, 8> shape;  // from the last dimension on
  for (const auto* tensor : arguments.tensors) {
    stored += static_cast<double>(tensor->storage().nbytes());
    widest = std::max(widest, static_cast<double>(tensor->element_size()));
    const auto sizes = tensor->sizes();
    shape.resize(std::max(shape.size(), sizes.size()), 1);
    for (size_t i = 0; i < sizes.size(); ++i) {
      shape[i] = std::max(shape[i], sizes[sizes.size() - 1 - i]);
    }
  }
  for (const auto size : shape) {
    widest *= static_cast<double>(size);
  }
  return std::max(stored, widest);
}

std::unique_ptr<Signature> tried(
    Operator& op, c10::ArrayRef<c10::IValue> given, const Arguments& arguments, StandIns what) {
  const auto tensors = stand_ins(arguments, what);
  auto signature = make_signature(op, given, arguments);
  const auto& known = *signature;
  Observed call(std::move(signature), tensors);
  const auto device = what == StandIns::kMeta ? c10::kMeta : host_device(arguments.device).type();
  try {
    return call.learn(call_on(tensors, known, arguments), device);
  } catch (...) {
    return nullptr;
  }
}

// Where running a call would mean copies: a small one is rehearsed on the CPU with made-up data,
// which has the CPU's strides and knows which types there is no kernel for. The results of a large
// one are foretold by its meta function. Where that raises, the CPU runs it on real data.
std::unique_ptr<Signature> infer_portable(
    Operator& op, c10::ArrayRef<c10::IValue> given, const Arguments& arguments) {
  const bool is_small = op.builtin && !arguments.draws_hidden && op.generator < 0 &&
      !arguments.tensors.empty() && rough_bytes(arguments) <= kMostRehearsed && !op.needs_real_data;
  auto signature = tried(op, given, arguments, is_small ? StandIns::kOnes : StandIns::kMeta);
  if (signature == nullptr && is_small) {
    signature = tried(op, given, arguments, StandIns::kZeros);  // an index into anything
  }
  if (signature != nullptr) {
    for (const auto& result : signature->results) {
      if (result.defined) {
        check_type(arguments.device, result.spec.dtype);
      }
    }
  }
  return signature;
}

}  // namespace

std::vector<at::Tensor> stand_ins(const Arguments& arguments, StandIns what) {
  HostScope scope(arguments.device);
  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages;
  std::vector<at::Tensor> made;
  made.reserve(arguments.tensors.size());
  for (const auto* tensor : arguments.tensors) {
    auto& storage = storages[tensor->storage().unsafeGetStorageImpl()];
    if (!storage) {
      storage = what == StandIns::kMeta ? meta_storage(tensor->storage().nbytes())
                                        : filled_storage(*tensor, what == StandIns::kOnes ? 1 : 0);
    }
    made.push_back(host_tensor(
        storage,
        tensor->sizes(),
        tensor->strides(),
        tensor->storage_offset(),
        tensor->scalar_type(),
        tensor->is_conj(),
        tensor->is_neg()));
  }
  return made;
}

c10::Stack call_on(
    const std::vector<at::Tensor>& tensors,
    const Signature& signature,
    const Arguments& arguments) {
  const auto& op = *signature.op;
  const auto device = tensors.empty() ? c10::Device(c10::kMeta) : tensors.front().device();
  HostScope scope(arguments.device);
  c10::Stack stack;
  push_arguments(
      stack, signature, arguments.values.data(), [&](size_t i) { return tensors[i]; }, device);
  if (op.portable != nullptr) {
    stack.resize(1);  // it fills its first argument
  } else if (device.is_meta()) {
    if (op.generator >= 0) {
      stack[op.generator] = {};  // not the numbers that were drawn for this call
    }
    op.handle.callBoxed(stack);
  } else {
    call_aten(op, arguments.device, stack);
  }
  return stack;
}

std::unique_ptr<Signature> infer(
    Operator& op, c10::ArrayRef<c10::IValue> given, const Arguments& arguments) {
  if (is_portable(arguments.device)) {
    return infer_portable(op, given, arguments);
  }
  // Running lists of many tensors takes less memory together with the calls that follow.
  if (!op.is_listwise || !host_device(arguments.device).is_cpu() ||
      rough_bytes(arguments) <= kMostRehearsed) {
    return nullptr;
  }
  auto signature = make_signature(op, given, arguments);
  return infer_lists(*signature, arguments) ? std::move(signature) : nullptr;
}

bool meta_agrees(const Signature& signature, const Arguments& arguments) {
  Signature foretold;
  foretold.op = signature.op;
  try {
    const auto results = call_on(stand_ins(arguments, StandIns::kMeta), signature, arguments);
    return describe_results(foretold, results) && foretold.list_sizes == signature.list_sizes &&
        foretold.results == signature.results;
  } catch (...) {
    return false;
  }
}

Observed::Observed(std::unique_ptr<Signature> signature, std::vector<at::Tensor> tensors)
    : signature_(std::move(signature)), tensors_(std::move(tensors)) {
  for (const auto& tensor : tensors_) {
    was_empty_.push_back(tensor.storage().nbytes() == 0);
  }
}

std::unique_ptr<Signature> Observed::learn(
    c10::ArrayRef<c10::IValue> results, c10::DeviceType device) {
  const bool is_known =
      learn_growth() && describe_results(*signature_, results) && are_fresh(results, device);
  return is_known ? std::move(signature_) : nullptr;
}

// Tensors that came empty, as out=, have their sizes now. PyTorch warns each time that it resizes
// what had a size.
bool Observed::learn_growth() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    auto& spec = signature_->specs[i];
    if (tensors_[i].sizes() == spec.sizes && tensors_[i].strides() == spec.strides) {
      continue;
    }
    if (!was_empty_[i]) {
      return false;
    }
    spec.sizes = tensors_[i].sizes();
    spec.strides = tensors_[i].strides();
    signature_->grown.push_back(static_cast<uint32_t>(i));
  }
  return true;
}

// Some kernels return an argument or a view of it without saying so, and CUDA's attention a seed on
// the CPU.
bool Observed::are_fresh(c10::ArrayRef<c10::IValue> results, c10::DeviceType device) const {
  for (size_t i = 0; i < results.size(); ++i) {
    if (signature_->op->returns[i] >= 0 || signature_->list_sizes[i] == Signature::kConstant ||
        !results[i].isTensor() || !results[i].toTensor().defined()) {
      continue;
    }
    const auto& result = results[i].toTensor();
    const auto shared = [&](const at::Tensor& tensor) {
      return tensor.storage().is_alias_of(result.storage());
    };
    if (result.device().type() != device || std::any_of(tensors_.begin(), tensors_.end(), shared)) {
      return false;
    }
  }
  return true;
}

}  // namespace tiny
