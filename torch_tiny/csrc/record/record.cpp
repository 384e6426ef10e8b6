#include "record/record.h"

#include <ATen/EmptyTensor.h>
#include <torch/library.h>

#include "core/aten_call.h"
#include "core/call_key.h"
#include "core/lists.h"
#include "random/generator.h"
#include "random/portable_random.h"
#include "record/append_call.h"
#include "run/queue.h"

namespace tiny {
namespace {

constexpr const char* kDataDependent = "data-dependent operator";
constexpr const char* kUnknownMetadata = "result metadata not known yet";
constexpr size_t kMostRehearsed = size_t{4} << 20;         // bytes of a call
constexpr const char* kSegments = "aten::segment_reduce";  // made-up lengths do not add up
constexpr const char* kShared = "memory shared with numpy or DLPack";

void push_results(
    const Operator& op,
    const Signature& signature,
    c10::ArrayRef<c10::IValue> arguments,
    const Recording& recording,
    c10::DeviceIndex device,
    c10::SmallVectorImpl<c10::IValue>& results) {
  auto next = signature.results.begin();
  for (size_t i = 0; i < op.returns.size(); ++i) {
    if (op.returns[i] >= 0) {
      results.push_back(arguments[op.returns[i]]);
    } else if (signature.list_sizes[i] == Signature::kConstant) {
      results.emplace_back(signature.constants[i]);
    } else if (signature.list_sizes[i] == Signature::kTensor) {
      results.emplace_back(fresh_result(recording, *next++, device));
    } else {
      c10::List<at::Tensor> list;
      list.reserve(signature.list_sizes[i]);
      for (int k = 0; k < signature.list_sizes[i]; ++k) {
        list.push_back(fresh_result(recording, *next++, device));
      }
      results.emplace_back(std::move(list));
    }
  }
}

void replace(c10::Stack* stack, size_t count, c10::SmallVectorImpl<c10::IValue>& results) {
  torch::jit::drop(*stack, count);
  for (auto& result : results) {
    stack->push_back(std::move(result));
  }
}

// Whether the results are memory of their own on this device. Some kernels return an argument or a
// view of it without saying so, and CUDA's attention a seed on the CPU: those run each time.
bool are_fresh(
    const Signature& signature,
    c10::ArrayRef<c10::IValue> results,
    c10::ArrayRef<at::Tensor> arguments) {
  for (size_t i = 0; i < results.size(); ++i) {
    if (signature.op->returns[i] >= 0 || signature.list_sizes[i] == Signature::kConstant ||
        !results[i].isTensor() || !results[i].toTensor().defined()) {
      continue;
    }
    const auto& result = results[i].toTensor();
    const auto shared = [&](const at::Tensor& argument) {
      return argument.storage().is_alias_of(result.storage());
    };
    if (result.device().type() != kTiny ||
        std::any_of(arguments.begin(), arguments.end(), shared)) {
      return false;
    }
  }
  return true;
}

// The first call of its kind runs now, and what its results look like is remembered. PyTorch's
// meta functions could foretell it, but in Python, and not always what the kernel does.
void run_and_remember(Operator& op, Queue& queue, c10::Stack* stack, Arguments& arguments) {
  const auto given = torch::jit::last(*stack, op.writes.size());
  auto signature = make_signature(op, given, arguments);
  ++Recording(queue.recorder)->metrics.metadata_misses;
  c10::SmallVector<at::Tensor, 8> tensors;  // the stack will be gone
  c10::SmallVector<bool, 8> was_empty;
  for (auto& tensor : arguments.tensors) {
    tensors.push_back(*tensor);
    was_empty.push_back(tensor->storage().nbytes() == 0);
  }
  queue.run_eagerly(op, stack, kUnknownMetadata);
  for (size_t i = 0; i < tensors.size(); ++i) {
    arguments.tensors[i] = &tensors[i];
    auto& spec = signature->specs[i];
    if (tensors[i].sizes() != spec.sizes || tensors[i].strides() != spec.strides) {
      if (!was_empty[i]) {
        return;  // resized what had a size: PyTorch warns each time
      }
      spec.sizes = tensors[i].sizes();
      spec.strides = tensors[i].strides();
      signature->grown.push_back(static_cast<uint32_t>(i));
    }
  }
  const auto results = torch::jit::last(*stack, op.returns.size());
  if (!describe_results(*signature, results) || !are_fresh(*signature, results, tensors)) {
    return;
  }
  if (!op.builtin && !meta_agrees(*signature, arguments)) {
    op.kind = Operator::Kind::kEager;
    return;
  }
  Recording(queue.recorder)->signatures.insert(std::move(signature));
}

// A call on tensors that stand in for those of the user: what its results would look like.
bool try_call(
    Operator& op,
    Signature& signature,
    const Arguments& arguments,
    const std::vector<at::Tensor>& tensors,
    c10::Device device) {
  c10::Stack results;
  try {
    HostScope scope(arguments.device);
    push_arguments(
        results, signature, arguments.values.data(), [&](size_t i) { return tensors[i]; }, device);
    if (op.portable != nullptr) {
      results.resize(1);  // it fills its first argument
    } else {
      call_aten(op, arguments.device, results);
    }
  } catch (...) {
    return false;
  }
  signature.grown.clear();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& given = *arguments.tensors[i];
    auto& spec = signature.specs[i];
    spec.sizes = tensors[i].sizes();
    spec.strides = tensors[i].strides();
    if (spec.sizes != given.sizes() || spec.strides != given.strides()) {
      if (given.storage().nbytes() != 0) {
        return false;  // PyTorch warns of that each time
      }
      signature.grown.push_back(static_cast<uint32_t>(i));
    }
  }
  if (!describe_results(signature, results)) {
    return false;
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (op.returns[i] < 0 && results[i].isTensor() && results[i].toTensor().defined()) {
      const auto& result = results[i].toTensor();
      const auto shared = [&](const at::Tensor& tensor) {
        return tensor.storage().is_alias_of(result.storage());
      };
      if (result.device() != device || std::any_of(tensors.begin(), tensors.end(), shared)) {
        return false;
      }
    }
  }
  return true;
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

// A call that is like none before it, recorded all the same: running lists of many tensors takes
// less memory together with the calls that follow.
bool infer_large_lists(
    Operator& op, Queue& queue, c10::ArrayRef<c10::IValue> given, const Arguments& arguments) {
  if (!op.is_listwise || !host_device(arguments.device).is_cpu() ||
      rough_bytes(arguments) <= kMostRehearsed) {
    return false;
  }
  auto signature = make_signature(op, given, arguments);
  if (!infer_lists(*signature, given, arguments)) {
    return false;
  }
  const Recording recording(queue.recorder);
  ++recording->metrics.metadata_misses;
  recording->signatures.insert(std::move(signature));
  return true;
}

// On a portable device, where running it would mean copies: a small call is rehearsed on the CPU
// with made-up data, which has the CPU's strides and knows which types there is no kernel for. The
// results of a large one are foretold by its meta function. False if that raises; then the CPU
// runs it on real data, and raises in its own words.
bool infer(
    Operator& op, Queue& queue, c10::ArrayRef<c10::IValue> given, const Arguments& arguments) {
  auto signature = make_signature(op, given, arguments);
  const bool draws = arguments.draws_hidden ||
      std::find(op.takes_generator.begin(), op.takes_generator.end(), true) !=
          op.takes_generator.end();
  const auto rehearsed = [&](int number) {
    const auto tensors = made_up_tensors(arguments, number);
    return try_call(op, *signature, arguments, tensors, host_device(arguments.device));
  };
  const auto foretold = [&] {
    return try_call(op, *signature, arguments, meta_tensors(arguments), c10::Device(c10::kMeta));
  };
  // Ones divide, zeros are an index into anything.
  const bool is_small = op.builtin && !draws && !arguments.tensors.empty() &&
      rough_bytes(arguments) <= kMostRehearsed && op.name != kSegments;
  if (is_small ? !rehearsed(1) && !rehearsed(0) : !foretold()) {
    return false;
  }
  for (const auto& result : signature->results) {
    if (result.defined) {
      check_type(arguments.device, result.spec.dtype);
    }
  }
  const Recording recording(queue.recorder);
  ++recording->metrics.metadata_misses;
  recording->signatures.insert(std::move(signature));
  return true;
}

void record_view(Operator& op, Queue& queue, c10::Stack* stack, const Arguments& arguments) {
  const auto count = op.writes.size();
  const auto given = torch::jit::last(*stack, count);
  const auto signature = make_signature(op, given, arguments);
  const auto metas = meta_tensors(arguments);
  c10::Stack viewed;
  try {
    HostScope scope(arguments.device);
    push_arguments(
        viewed,
        *signature,
        arguments.values.data(),
        [&](size_t i) { return metas[i]; },
        c10::Device(c10::kMeta));
    op.handle.callBoxed(viewed);
  } catch (...) {
    return queue.run_eagerly(op, stack, kUnknownMetadata);
  }
  auto alias = [&](const at::Tensor& meta) {
    for (size_t i = 0; i < metas.size(); ++i) {
      if (meta.storage().is_alias_of(metas[i].storage())) {
        return make_alias(
            *arguments.tensors[i],
            meta.sizes(),
            meta.strides(),
            meta.storage_offset(),
            meta.scalar_type());
      }
    }
    TORCH_CHECK(false, op.name, " should return a view but returned a copy");
  };
  c10::SmallVector<c10::IValue, 2> results;
  for (const auto& value : viewed) {
    if (value.isTensor()) {
      results.emplace_back(alias(value.toTensor()));
    } else {
      c10::List<at::Tensor> list;
      for (const auto& item : value.toListRef()) {
        list.push_back(alias(item.toTensor()));
      }
      results.emplace_back(std::move(list));
    }
  }
  replace(stack, count, results);
}

// Gives empty out= tensors their sizes. False if one has memory, or is to be computed: only a run
// can deal with that.
bool grow(const Recording& recording, const Signature& signature, const Arguments& arguments) {
  for (const auto i : signature.grown) {
    const auto& storage = TinyStorage::of(*arguments.tensors[i]);
    if (storage.nbytes() != 0 || storage.trace == recording->trace.id || !storage.resizable()) {
      return false;
    }
  }
  for (const auto i : signature.grown) {
    const auto& tensor = *arguments.tensors[i];
    const auto& spec = signature.specs[i];
    TinyStorage::of(tensor).resize(
        at::detail::computeStorageNbytes(
            spec.sizes, spec.strides, c10::elementSize(spec.dtype), tensor.storage_offset()));
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(spec.sizes, spec.strides);
  }
  return true;
}

// TorchScript knows more of the tensors in a list of indices than that they are tensors; to PyTorch
// such a list is none of the kinds of list that there are.
void retype_indices(c10::Stack& stack, size_t count) {
  for (auto value = stack.end() - static_cast<ptrdiff_t>(count); value != stack.end(); ++value) {
    if (!value->isList() || value->isOptionalTensorList()) {
      continue;
    }
    const auto type = value->toList().elementType();
    if (type->kind() != c10::TypeKind::OptionalType ||
        type->containedType(0)->kind() != c10::TypeKind::TensorType) {
      continue;
    }
    c10::List<std::optional<at::Tensor>> indices;
    for (const auto& item : value->toListRef()) {
      indices.push_back(item.toOptional<at::Tensor>());
    }
    *value = std::move(indices);
  }
}

void bump_versions(const Operator& op, c10::ArrayRef<c10::IValue> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (op.writes[i] && arguments[i].isTensorList()) {
      for (const auto& item : arguments[i].toListRef()) {
        if (!item.toTensor().is_inference()) {
          item.toTensor().unsafeGetTensorImpl()->bump_version();
        }
      }
    }
  }
}

}  // namespace

bool record_known(
    Operator& op,
    Arguments& arguments,
    c10::function_ref<void(const Recording&, const Signature&)> results) {
  auto& queue = Queue::of(arguments.device);
  // What ran before may raise; then this call has not been done.
  if (C10_UNLIKELY(arguments.exported)) {
    queue.run(kShared);
  } else if (C10_UNLIKELY(queue.recorder.is_full.load(std::memory_order_relaxed))) {
    queue.run_soon(kLimit);
  }
  const RecordingTime time(queue.recorder);
  const auto place = source_line();
  if (C10_UNLIKELY(queue.turns(place))) {
    queue.recorder.in_backward = place.node != nullptr;
    queue.run_soon(kTurn);
  }
  bool is_all_again = false;
  const auto flags = flags_now(op.asks_flags);
  {
    Recording recording(queue.recorder);
    while (C10_UNLIKELY(!recording->accepts(flags, place))) {
      recording.unlock();
      queue.run_soon(kSwitched);
      recording = Recording(queue.recorder);
    }
    const auto* signature = recording->signatures.find(op, arguments);
    if (C10_UNLIKELY(signature == nullptr || signature->stale.load(std::memory_order_relaxed))) {
      return false;
    }
    if (C10_UNLIKELY(!signature->grown.empty()) && !grow(recording, *signature, arguments)) {
      return false;
    }
    auto& values = recording->trace.values;
    const auto first_value = values.size();
    for (auto& value : arguments.values) {
      values.push_back(std::move(value));
    }
    append_call(recording, *signature, arguments.tensors, first_value, place, [&] {
      results(recording, *signature);
    });
    time.stop(recording);
    is_all_again = recording->is_all_again();
  }
  if (C10_UNLIKELY(arguments.exported)) {
    queue.run(kShared);
  } else if (C10_UNLIKELY(is_all_again)) {
    queue.run(kAhead);
  }
  return true;
}

void record(const c10::OperatorHandle& handle, c10::Stack* stack) {
  ensure_ready();
  auto& op = operator_of(handle);
  const auto count = op.writes.size();
  Arguments arguments;
  if (C10_UNLIKELY(op.takes_indices)) {
    retype_indices(*stack, count);
  }
  const auto given = torch::jit::last(*stack, count);
  if (C10_UNLIKELY(op.bumps_versions)) {
    bump_versions(op, given);
  }
  make_call_key(op, given, arguments);
  // However it runs, the numbers of this call are those that were taken for it just now.
  const HiddenNumbers numbers(arguments.numbers);
  if (C10_UNLIKELY(op.generator >= 0 && is_draw(arguments.numbers))) {
    if (op.portable != nullptr) {
      op.portable->check(given);
    }
    (*stack)[stack->size() - count + op.generator] = arguments.numbers;
  }
  auto& queue = Queue::of(arguments.device);
  const auto kind = op.kind.load(std::memory_order_relaxed);
  if (kind == Operator::Kind::kEager || !arguments.keyed || (op.masks_matter && arguments.masked)) {
    return queue.run_eagerly(op, stack, kDataDependent);
  }
  if (kind == Operator::Kind::kView) {
    return record_view(op, queue, stack, arguments);
  }
  c10::SmallVector<c10::IValue, 2> results;
  const auto note_results = [&](const Recording& recording, const Signature& signature) {
    push_results(op, signature, given, recording, arguments.device, results);
  };
  bool known = record_known(op, arguments, note_results);
  const auto foretold = is_portable(arguments.device) ? &infer : &infer_large_lists;
  if (!known && foretold(op, queue, given, arguments)) {
    known = record_known(op, arguments, note_results);
  }
  if (!known) {
    return run_and_remember(op, queue, stack, arguments);
  }
  replace(stack, count, results);
}

}  // namespace tiny

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&tiny::record>());
}
