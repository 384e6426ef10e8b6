#include "record/record.h"

#include <ATen/EmptyTensor.h>
#include <torch/library.h>

#include "core/arguments.h"
#include "core/aten_call.h"
#include "core/call_key.h"
#include "core/infer.h"
#include "random/generator.h"
#include "random/portable_random.h"
#include "record/append_call.h"
#include "run/queue.h"

namespace tiny {
namespace {

constexpr const char* kDataDependent = "data-dependent operator";
constexpr const char* kUnknownMetadata = "result metadata not known yet";
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

// The first call of its kind runs now, and what its results look like is remembered. PyTorch's
// meta functions could foretell it, but in Python, and not always what the kernel does.
void run_and_remember(Operator& op, Queue& queue, c10::Stack* stack, Arguments& arguments) {
  std::vector<at::Tensor> tensors;  // the stack will be gone
  for (auto& tensor : arguments.tensors) {
    tensors.push_back(*tensor);
  }
  Observed call(make_signature(op, torch::jit::last(*stack, op.writes.size()), arguments), tensors);
  ++Recording(queue.recorder)->metrics.metadata_misses;
  queue.run_eagerly(op, stack, kUnknownMetadata);
  auto signature = call.learn(torch::jit::last(*stack, op.returns.size()), kTiny);
  if (signature == nullptr) {
    return;
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    arguments.tensors[i] = &tensors[i];
  }
  if (!op.builtin && !meta_agrees(*signature, arguments)) {
    op.kind = Operator::Kind::kEager;
    return;
  }
  Recording(queue.recorder)->signatures.insert(std::move(signature));
}

bool infer_and_remember(
    Operator& op, Queue& queue, c10::ArrayRef<c10::IValue> given, const Arguments& arguments) {
  auto signature = infer(op, given, arguments);
  if (signature == nullptr) {
    return false;
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
  const auto metas = stand_ins(arguments, StandIns::kMeta);
  c10::Stack viewed;
  try {
    viewed = call_on(metas, *signature, arguments);
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
    results.push_back(map_tensors(value, alias));
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
  if (!known && infer_and_remember(op, queue, given, arguments)) {
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
