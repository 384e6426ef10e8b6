#include "run.h"

#include <Python.h>

#include <ATen/ops/empty_strided.h>

#include <chrono>
#include <memory>

#include "at_once.h"
#include "host_call.h"

namespace tiny {
namespace {

constexpr size_t kMostSignatures = 16'384;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// What a slot holds while its trace runs.
struct SlotState {
  at::Tensor tensor;  // the last stand-in that was made; usually the next call wants the same
  const Spec* spec = nullptr;
  int64_t offset = 0;
  c10::Storage memory;  // of a temporary
  std::exception_ptr failure;
};

bool has_layout(const at::Tensor& tensor, const Result& expected) {
  return tensor.sizes() == expected.spec.sizes && tensor.strides() == expected.spec.strides &&
      tensor.storage_offset() == expected.offset && tensor.scalar_type() == expected.spec.dtype &&
      tensor.is_conj() == expected.spec.conj && tensor.is_neg() == expected.spec.neg;
}

at::Tensor with_layout(const at::Tensor& tensor, const Result& expected, c10::Device host) {
  auto memory = at::empty_strided(
      {static_cast<int64_t>(expected.nbytes)}, {1}, at::device(host).dtype(at::kByte));
  auto result = host_tensor(
      memory.storage(),
      expected.spec.sizes,
      expected.spec.strides,
      expected.offset,
      expected.spec.dtype,
      false,
      false);
  result.copy_(tensor);
  return result;
}

// Tells in the error which operator failed, and where it was recorded.
void add_context(c10::Error& error, const Operator& op, const std::string& place) {
  error.add_context("raised by " + op.name + ", recorded at " + place);
}

class Runner {
 public:
  Runner(Trace& trace, const Plan& plan, c10::DeviceIndex device)
      : trace_(trace),
        plan_(plan),
        device_(device),
        host_(host_device(device)),
        states_(trace.slots.size()) {}

  void run() {
    for (size_t i = 0; i < trace_.calls.size(); ++i) {
      const auto& call = trace_.calls[i];
      if (auto failed = failed_input(call)) {
        fail(call, failed);
      } else {
        try {
          run_call(call);
        } catch (c10::Error& error) {
          add_context(error, *call.signature->op, describe(call.where));
          fail(call, std::current_exception());
        } catch (...) {
          fail(call, std::current_exception());
        }
      }
      for (auto k = plan_.release_begin[i]; k < plan_.release_begin[i + 1]; ++k) {
        states_[plan_.release[k]] = {};
        trace_.slots[plan_.release[k]].reset();
      }
    }
  }

  std::exception_ptr failure;
  uint64_t relayouts = 0;

 private:
  const at::Tensor& stand_in(const Use& use, const Spec& spec) {
    auto& state = states_[use.slot];
    if (state.spec != nullptr && state.offset == use.offset &&
        (state.spec == &spec || *state.spec == spec)) {
      return state.tensor;
    }
    const auto& memory = state.memory ? state.memory : trace_.slots[use.slot]->memory();
    state.tensor =
        host_tensor(memory, spec.sizes, spec.strides, use.offset, spec.dtype, spec.conj, spec.neg);
    state.spec = &spec;
    state.offset = use.offset;
    return state.tensor;
  }

  void run_call(const Call& call) {
    const auto& signature = *call.signature;
    stack_.clear();
    push_arguments(
        stack_,
        signature,
        trace_.values.data() + call.first_value,
        [&](size_t i) -> const at::Tensor& {
          return stand_in(trace_.uses[call.first_use + i], signature.specs[i]);
        },
        host_);
    call_on_host(*signature.op, device_, stack_);
    size_t next = 0;
    for (size_t i = 0; i < stack_.size(); ++i) {
      if (signature.op->returns[i] >= 0 || signature.list_sizes[i] == Signature::kSize) {
        continue;
      }
      if (signature.list_sizes[i] == Signature::kTensor) {
        take_result(call, next++, std::move(stack_[i]).toTensor());
      } else {
        auto list = stack_[i].toTensorVector();
        stack_[i] = {};
        for (auto& tensor : list) {
          take_result(call, next++, std::move(tensor));
        }
      }
    }
  }

  void take_result(const Call& call, size_t index, at::Tensor tensor) {
    const auto& expected = call.signature->results[index];
    if (!expected.defined) {
      return;
    }
    TORCH_CHECK(
        tensor.defined() && tensor.sizes() == expected.spec.sizes,
        "torch_tiny expected a result of sizes ",
        c10::IntArrayRef(expected.spec.sizes),
        " but got ",
        tensor.defined() ? c10::str(tensor.sizes()) : std::string("none"));
    // A fresh result owns its memory: two references are this tensor's and no one else's.
    if (C10_UNLIKELY(
            !has_layout(tensor, expected) || tensor.device() != host_ ||
            tensor.storage().use_count() != 1)) {
      call.signature->stale = true;
      ++relayouts;
      tensor = with_layout(tensor, expected, host_);
    }
    const auto slot = call.first_fresh + index;
    auto& state = states_[slot];
    if (plan_.temporary[slot]) {
      state.memory = tensor.storage();
    } else {
      trace_.slots[slot]->adopt(tensor.storage());
    }
    state.tensor = std::move(tensor);
    state.spec = &expected.spec;
    state.offset = expected.offset;
  }

  std::exception_ptr failed_input(const Call& call) const {
    for (size_t i = 0; i < call.signature->specs.size(); ++i) {
      const auto slot = trace_.uses[call.first_use + i].slot;
      if (states_[slot].failure != nullptr) {
        return states_[slot].failure;
      }
      if (trace_.slots[slot]->failure != nullptr) {
        return trace_.slots[slot]->failure;
      }
    }
    return nullptr;
  }

  // Results that were never made raise when they are read; what was written before stays.
  void fail(const Call& call, const std::exception_ptr& why) {
    if (failure == nullptr) {
      failure = why;
    }
    for (size_t i = 0; i < call.signature->results.size(); ++i) {
      const auto slot = call.first_fresh + i;
      states_[slot].failure = why;
      if (trace_.slots[slot]) {
        trace_.slots[slot]->failure = why;
      }
    }
  }

  Trace& trace_;
  const Plan& plan_;
  const c10::DeviceIndex device_;
  const c10::Device host_;
  std::vector<SlotState> states_;
  c10::Stack stack_;
};

}  // namespace

std::array<Queue*, Queue::kMost> Queue::all_{};

Queue& Queue::make(c10::DeviceIndex index) {
  static const bool made = [] {
    for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
      all_[i] = new Queue(i);
    }
    return true;
  }();
  TORCH_CHECK(made && index >= 0 && index < device_count(), "there is no device tiny:", int{index});
  return *all_[index];
}

void Queue::run(const char* reason) {
  run_then(reason, [] {});
}

void Queue::run_then(const char* reason, c10::function_ref<void()> body) {
  check_usable();
  WithoutGil no_gil;
  std::lock_guard lock(running_);
  run_locked(reason);
  body();
}

void Queue::settle(const TinyStorage& storage, const char* reason, c10::function_ref<void()> body) {
  check_usable();
  WithoutGil no_gil;
  std::lock_guard lock(running_);
  if (is_pending(storage)) {
    run_locked(reason);
  }
  body();
}

bool Queue::is_pending(const TinyStorage& storage) {
  std::lock_guard lock(mutex);
  return storage.trace == trace.id;
}

void Queue::run_locked(const char* reason) {
  const bool limit = reason == kLimit;
  Trace running;
  {
    std::lock_guard lock(mutex);
    if (trace.empty()) {
      return;
    }
    Trace next = limit ? trace.split(trace.find_restart()) : std::move(spare_);
    spare_ = Trace();
    running = std::move(trace);
    trace = std::move(next);
    is_full = false;
  }
  const auto place = where();
  const auto begin = std::chrono::steady_clock::now();
  bool hit = false;
  const auto plan = plans_.find(running, hit);
  Runner runner(running, *plan, device_);
  ++depth_;
  {
    HostScope scope(device_);
    runner.run();
  }
  --depth_;
  running.clear();
  spare_ = std::move(running);
  {
    std::lock_guard lock(mutex);
    followed = plan;
    ++metrics.traces;
    ++(hit ? metrics.plan_hits : metrics.plan_misses);
    metrics.syncs += limit ? 0 : 1;
    metrics.relayouts += runner.relayouts;
    metrics.seconds_running += seconds_since(begin);
    ++metrics.causes[{reason, place}];
  }
  if (runner.failure != nullptr) {
    std::rethrow_exception(runner.failure);
  }
}

void Queue::run_at_once(Operator& op, c10::Stack* stack, const char* reason) {
  run_then(reason, [&] {
    op.at_once.fetch_add(1, std::memory_order_relaxed);
    call_at_once(op, device_, stack);
    forget_signatures_if_many();
  });
}

// Programs whose shapes never repeat must not fill the memory. Traces refer to signatures.
void Queue::forget_signatures_if_many() {
  std::lock_guard lock(mutex);
  if (signatures.size() > kMostSignatures && trace.empty() && depth_ == 0) {
    signatures.clear();
    followed = nullptr;
    plans_.clear();
  }
}

void run_trace(c10::DeviceIndex index, const char* reason) {
  Queue::of(index).run(reason);
}

void run_everything(const char* reason) {
  for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
    run_trace(index, reason);
  }
}

WithoutGil::WithoutGil() {
  if (Py_IsInitialized() && PyGILState_Check()) {
    state_ = PyEval_SaveThread();
  }
}

WithoutGil::~WithoutGil() noexcept(false) {
  if (state_ != nullptr) {
    PyEval_RestoreThread(static_cast<PyThreadState*>(state_));
  }
}

}  // namespace tiny
