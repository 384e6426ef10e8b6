#include "run.h"

#include <Python.h>

#include <chrono>
#include <memory>

#include "at_once.h"
#include "describe.h"
#include "engine.h"
#include "host_call.h"
#include "runner.h"

namespace tiny {
namespace {

constexpr size_t kMostSignatures = 16'384;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// What is new in a trace, seen from the one that was run before it.
std::pair<std::string, Where> why_new(const Trace& trace, const Plan* last) {
  const auto count = last == nullptr ? 0 : last->signatures.size();
  for (size_t i = 0; i < trace.calls.size(); ++i) {
    const auto& call = trace.calls[i];
    const auto& name = call.signature->op->name;
    if (i >= count) {
      return {last == nullptr ? "the first trace" : "more calls, from " + name, call.where};
    }
    const auto& before = *last->signatures[i];
    if (&before == call.signature) {
      continue;
    }
    if (before.op != call.signature->op) {
      return {"operator: " + name + " in place of " + before.op->name, call.where};
    }
    for (size_t k = 0; k < std::min(before.specs.size(), call.signature->specs.size()); ++k) {
      const auto& [was, is] = std::tie(before.specs[k], call.signature->specs[k]);
      if (was.dtype != is.dtype) {
        return {"dtype: an argument of " + name, call.where};
      }
      if (was.sizes != is.sizes) {
        return {"shape: an argument of " + name, call.where};
      }
      if (was.strides != is.strides) {
        return {"strides: an argument of " + name, call.where};
      }
    }
    return {"argument: of " + name, call.where};
  }
  return {
      trace.calls.size() < count ? "fewer calls" : "tensors: which are kept or shared",
      trace.calls.back().where};
}

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
  const auto news = hit ? decltype(why_new(running, nullptr)){} : why_new(running, followed.get());
  Runner runner(running, *plan, device_);
  ++depth_;
  {
    HostScope scope(device_);
    if (const auto refused = compile(running, *plan); refused.empty()) {
      runner.run();
    } else {
      runner.fail_all(refused);
    }
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
    if (!hit) {
      ++metrics.news[news];
    }
  }
  if (runner.failure != nullptr) {
    std::rethrow_exception(runner.failure);
  }
}

// Asks for the plan to be compiled where that is due. Returns why it cannot run, if it cannot.
std::string Queue::compile(const Trace& running, const Plan& plan) {
  auto& compiler = Compiler::get();
  const auto mode = compiler.mode.load(std::memory_order_relaxed);
  ++plan.runs;
  if (C10_UNLIKELY(compiler.listens.load(std::memory_order_relaxed))) {
    compiler.hear(describe(running, plan));
  }
  if (mode == Mode::kAuto && plan.runs == kHot) {
    compiler.offer({device_, plan.id, describe(running, plan)});
  } else if (mode == Mode::kUop && plan.runs == 1) {
    return compiler.compile_now({device_, plan.id, describe(running, plan)});
  }
  return {};
}

bool Queue::install(uint64_t id, std::shared_ptr<Compiled> compiled) {
  WithoutGil no_gil;
  std::lock_guard lock(running_);
  const auto plan = plans_.by_id(id);
  if (plan == nullptr) {
    return false;
  }
  plan->compiled = std::move(compiled);
  return true;
}

void Queue::for_each_plan(c10::function_ref<void(const Plan&)> visit) {
  WithoutGil no_gil;
  std::lock_guard lock(running_);
  plans_.for_each(visit);
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
