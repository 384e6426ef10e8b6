#include "record.h"

#include <torch/library.h>

#include <chrono>

#include "host_call.h"
#include "resize.h"
#include "run.h"

namespace tiny {
namespace {

constexpr uint64_t kTimeOneIn = 16;  // recording is timed by samples: a clock costs as much

constexpr const char* kDataDependent = "data-dependent operator";
constexpr const char* kUnknownMetadata = "result metadata not known yet";
constexpr const char* kShared = "memory shared with numpy or DLPack";
constexpr const char* kTooLarge = "result larger than memory";

class RecordingTime {
 public:
  explicit RecordingTime(Queue& queue) : queue_(queue) {
    thread_local uint64_t count = 0;
    sampled_ = count++ % kTimeOneIn == 0;
    if (C10_UNLIKELY(sampled_)) {
      begin_ = std::chrono::steady_clock::now();
    }
  }
  // With the queue's mutex held.
  void stop() const {
    if (C10_UNLIKELY(sampled_)) {
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin_;
      queue_.metrics.seconds_recording += elapsed.count() * kTimeOneIn;
    }
  }

 private:
  Queue& queue_;
  bool sampled_;
  std::chrono::steady_clock::time_point begin_;
};

// Results replace the arguments; the old ones are destroyed by the caller, outside the lock.
void push_results(
    const Operator& op,
    const Signature& signature,
    c10::ArrayRef<c10::IValue> arguments,
    Queue& queue,
    c10::DeviceIndex device,
    c10::SmallVectorImpl<c10::IValue>& results) {
  size_t next = 0;
  auto fresh = [&]() -> at::Tensor {
    const auto& result = signature.results[next++];
    if (!result.defined) {
      queue.trace.add_fresh(nullptr);
      return {};
    }
    auto tensor = make_tensor(
        device,
        result.nbytes,
        result.spec.sizes,
        result.spec.strides,
        result.offset,
        result.spec.dtype);
    if (C10_UNLIKELY(result.spec.conj)) {
      tensor._set_conj(true);
    }
    if (C10_UNLIKELY(result.spec.neg)) {
      tensor._set_neg(true);
    }
    queue.trace.add_fresh(
        c10::intrusive_ptr<TinyStorage>::reclaim_copy(&TinyStorage::of(tensor)));
    return tensor;
  };
  for (size_t i = 0; i < op.returns.size(); ++i) {
    if (op.returns[i] >= 0) {
      results.push_back(arguments[op.returns[i]]);
    } else if (signature.list_sizes[i] < 0) {
      results.emplace_back(fresh());
    } else {
      c10::List<at::Tensor> list;
      list.reserve(signature.list_sizes[i]);
      for (int k = 0; k < signature.list_sizes[i]; ++k) {
        list.push_back(fresh());
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

// Runs the operator now, and remembers what its results looked like for the next time.
void run_and_remember(
    Operator& op, Queue& queue, c10::Stack* stack, const Arguments& arguments,
    std::unique_ptr<Signature> signature) {
  std::vector<at::Tensor> tensors;
  for (const auto* tensor : arguments.tensors) {
    tensors.push_back(*tensor);
  }
  const auto words = arguments.words;
  queue.run_at_once(op, stack, kUnknownMetadata);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].sizes() != signature->specs[i].sizes ||
        tensors[i].strides() != signature->specs[i].strides) {
      return;  // it was resized; the next call looks different
    }
  }
  const auto results = torch::jit::last(*stack, op.returns.size());
  if (op.remember && remember_results(*signature, results)) {
    std::lock_guard lock(queue.mutex);
    queue.signatures.insert(std::move(signature), arguments.hash);
  }
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
    return queue.run_at_once(op, stack, kUnknownMetadata);
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

// True if the call was dealt with and nothing is left to record.
bool learn(
    Operator& op, Queue& queue, c10::Stack* stack, Arguments& arguments, Signature*& signature) {
  auto fresh = make_signature(op, torch::jit::last(*stack, op.writes.size()), arguments);
  std::vector<Resized> resized;
  const bool told = op.trust_meta && !op.meta_was_wrong.load(std::memory_order_relaxed) &&
      infer_results(*fresh, arguments, resized);
  if (!told || fresh->fresh_bytes > memory_limit(arguments.device)) {
    run_and_remember(op, queue, stack, arguments, std::move(fresh));
    return true;
  }
  if (!resized.empty()) {
    for (const auto& change : resized) {
      resize_tensor(*arguments.tensors[change.tensor], change.sizes, change.strides);
    }
    record(op.handle, stack);
    return true;
  }
  std::lock_guard lock(queue.mutex);
  ++queue.metrics.metadata_misses;
  signature = queue.signatures.find(op, arguments);
  if (signature == nullptr) {
    signature = queue.signatures.insert(std::move(fresh), arguments.hash);
  }
  return false;
}

}  // namespace

void record(const c10::OperatorHandle& handle, c10::Stack* stack) {
  check_usable();
  mark_used();
  auto& op = operator_of(handle);
  const auto count = op.writes.size();
  Arguments arguments;
  const auto given = torch::jit::last(*stack, count);
  take_apart(op, given, arguments);
  auto& queue = Queue::of(arguments.device);
  if (op.kind == Operator::Kind::kAtOnce || !arguments.keyed) {
    return queue.run_at_once(op, stack, kDataDependent);
  }
  if (op.kind == Operator::Kind::kView) {
    return record_view(op, queue, stack, arguments);
  }
  const RecordingTime time(queue);
  const auto place = where();
  c10::SmallVector<c10::IValue, 2> results;
  bool full = false;
  std::unique_lock lock(queue.mutex);
  auto* signature = queue.signatures.find(op, arguments);
  if (C10_UNLIKELY(signature == nullptr)) {
    lock.unlock();
    if (learn(op, queue, stack, arguments, signature)) {
      return;
    }
    lock.lock();
  } else {
    ++queue.metrics.metadata_hits;
  }
  auto& trace = queue.trace;
  Call call{
      signature,
      static_cast<uint32_t>(trace.uses.size()),
      static_cast<uint32_t>(trace.values.size()),
      0,
      place};
  for (const auto* tensor : arguments.tensors) {
    trace.uses.push_back(
        {trace.slot_of(TinyStorage::of(*tensor)), tensor->unsafeGetTensorImpl()->storage_offset()});
  }
  for (auto& value : arguments.values) {
    trace.values.push_back(std::move(value));
  }
  call.first_fresh = static_cast<uint32_t>(trace.slots.size());
  push_results(op, *signature, given, queue, arguments.device, results);
  trace.calls.push_back(call);
  trace.bytes += signature->fresh_bytes;
  ++queue.metrics.calls;
  op.calls.fetch_add(1, std::memory_order_relaxed);
  full = queue.is_full();
  time.stop();
  lock.unlock();
  replace(stack, count, results);
  if (C10_UNLIKELY(arguments.exported)) {
    queue.run(kShared);
  } else if (C10_UNLIKELY(full)) {
    queue.run(kLimit);
  }
}

}  // namespace tiny

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&tiny::record>());
}
