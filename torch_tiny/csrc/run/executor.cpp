#include "run/executor.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>

#include "base/mode.h"
#include "core/aten_call.h"
#include "plan/compiler.h"
#include "plan/describe.h"
#include "run/runner.h"

namespace tiny {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// What is new in a trace, seen from the one that was run before it.
std::pair<std::string, SourceLine> why_new(const Trace& trace, const Plan* last) {
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

struct Deeper {
  explicit Deeper(int& depth) : depth_(depth) {
    ++depth_;
  }
  ~Deeper() {
    --depth_;
  }
  int& depth_;
};

// A kernel written in Python may run batches of others in the middle of one.
class OnStream {
 public:
  explicit OnStream(const std::optional<c10::Stream>& stream) {
    if (stream.has_value()) {
      before_ = c10::impl::VirtualGuardImpl(stream->device_type()).exchangeStream(*stream);
    }
  }
  ~OnStream() {
    if (before_.has_value()) {
      c10::impl::VirtualGuardImpl(before_->device_type()).exchangeStream(*before_);
    }
  }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  std::optional<c10::Stream> before_;
};

}  // namespace

Executor::Executor(c10::DeviceIndex device, Recorder& recorder)
    : may_have_thread(host_device(device).type() == c10::kCUDA),
      device_(device),
      recorder_(recorder) {}

std::optional<Batch> Executor::take(const char* reason) {
  Batch batch;
  batch.reason = reason;
  std::shared_ptr<const Plan> last;
  {
    const Recording recording(recorder_);
    auto& trace = recording->trace;
    if (trace.empty()) {
      return std::nullopt;
    }
    batch.underway = Underway(recording);
    or_fail(trace, [&] {
      Trace next;
      // Readers tell what is on its way by numbers that grow.
      if (reason == kLimit) {
        next = trace.split(trace.find_restart());
      } else {
        next = std::exchange(recording->spare, Trace());
        next.renew();
      }
      batch.trace = std::move(trace);
      trace = std::move(next);
    });
    recorder_.is_full = false;
    last = recording->followed;
  }
  or_fail(batch.trace, [&] {
    if (reason != kAhead) {  // there every moment counts
      batch.place = source_line();
    }
    batch.plan = plans_.find(batch.trace, batch.hit);
    if (batch.hit) {
      has_repeated_ = true;
    } else {
      batch.miss_reason = why_new(batch.trace, last.get());
    }
  });
  const Recording recording(recorder_);
  recording->followed = batch.plan;
  recording->is_ahead = reason == kAhead;
  recording->was_waited_for = may_have_thread && batch.hit && is_asked_for(reason);
  return batch;
}

void Executor::execute(Batch batch) {
  const auto begin = std::chrono::steady_clock::now();
  Outcome outcome;
  try {
    outcome = run_batch(batch);
  } catch (...) {
    outcome.failure = current_failure();
    batch.trace.fail(outcome.failure);
  }
  const auto interrupted = std::exchange(interruption, nullptr);
  batch.trace.clear();
  const auto seconds = seconds_since(begin);
  batch.plan->seconds.store(batch.plan->seconds.load(std::memory_order_relaxed) + seconds);
  count(batch, outcome, seconds);
  Recording(recorder_)->spare = std::move(batch.trace);
  if (const auto& failure = outcome.failure != nullptr ? outcome.failure : interrupted) {
    raise_failure(failure);
  }
}

Executor::Outcome Executor::run_batch(Batch& batch) {
  Outcome outcome;
  Runner runner(batch.trace, *batch.plan, device_);
  const Deeper deeper(depth_);
  const HostScope scope(device_);
  const WithFlags flags(batch.trace.flags);
  const OnStream stream(batch.stream);
  if (const auto refused = compile(batch.trace, *batch.plan); !refused.empty()) {
    runner.fail_all(refused);
  } else {
    outcome.as_graph = run_as_graph(batch.trace, *batch.plan);
    if (outcome.as_graph == PlanGraph::Done::kNothing) {
      runner.run();
    }
  }
  outcome.failure = runner.failure;
  outcome.relayouts = runner.relayouts;
  outcome.products = runner.products;
  return outcome;
}

void Executor::count(const Batch& batch, const Outcome& outcome, double seconds) {
  const Recording recording(recorder_);
  auto& metrics = recording->metrics;
  ++metrics.traces;
  ++(batch.hit ? metrics.plan_hits : metrics.plan_misses);
  metrics.syncs += is_asked_for(batch.reason) ? 1 : 0;
  metrics.relayouts += outcome.relayouts;
  metrics.products += outcome.products;
  metrics.graphs += outcome.as_graph == PlanGraph::Done::kCaptured ? 1 : 0;
  metrics.graph_runs += outcome.as_graph == PlanGraph::Done::kNothing ? 0 : 1;
  metrics.seconds_running += seconds;
  if (batch.reason != kAhead) {  // who waits for it will be the cause
    metrics.causes.count(batch.reason, batch.place);
  }
  if (!batch.hit) {
    metrics.miss_reasons.count(batch.miss_reason.first, batch.miss_reason.second);
  }
}

// Asks for the plan to be compiled where that is due. Returns why it cannot run, if it cannot.
std::string Executor::compile(const Trace& running, const Plan& plan) {
  auto& compiler = Compiler::get();
  ++plan.runs;
  if (C10_UNLIKELY(compiler.listens.load(std::memory_order_relaxed))) {
    compiler.hear(describe(running, plan));
  }
  const auto make_job = [&] {
    Job job{device_, plan.id, plan.weak_from_this(), describe(running, plan)};
    for (const auto& call : running.calls) {
      job.places.push_back(call.where);
    }
    return job;
  };
  if (is_portable(device_)) {
    if (plan.runs == 1) {
      const auto refused = compiler.compile_portable(make_job());
      const bool is_done = refused.empty() && interruption == nullptr;
      plan.runs = is_done ? 1 : 0;  // else asked again next time
      return refused;
    }
  } else if (
      mode() == Mode::kAuto && (plan.runs == kHot || compiler.is_due_again(device_, plan.id))) {
    compiler.offer(device_, plan.id, make_job);
  } else if (mode() == Mode::kUop && plan.runs == 1) {
    const auto refused = compiler.compile_now(make_job());
    const bool is_done = refused.empty() && interruption == nullptr;
    plan.runs = is_done ? 1 : 0;  // what was refused once is refused again
    return refused;
  }
  return {};
}

// On CUDA memory a plan that has settled becomes a graph; not while a kernel uses the device.
PlanGraph::Done Executor::run_as_graph(Trace& running, const Plan& plan) {
  if (!may_have_thread || depth_ > 1 || !uses_graphs.load(std::memory_order_relaxed)) {
    return PlanGraph::Done::kNothing;
  }
  if (plan.graph == nullptr) {
    plan.graph = std::make_shared<PlanGraph>();
  }
  return plan.graph->run(running, plan, device_);
}

bool Executor::install(uint64_t id, std::shared_ptr<Compiled> compiled) {
  const auto plan = plans_.by_id(id);
  if (plan == nullptr) {
    return false;
  }
  plan->compiled = std::move(compiled);
  plan->graph = nullptr;  // it is of the steps before
  return true;
}

// Traces refer to signatures.
void Executor::forget_signatures_if_many() {
  const Recording recording(recorder_);
  const auto most = most_signatures.load(std::memory_order_relaxed);
  if (recording->signatures.size() > most && recording->is_idle()) {
    recording->followed = nullptr;
    recording->signatures.keep(plans_.keep_recent(most / 2));
  }
}

}  // namespace tiny
