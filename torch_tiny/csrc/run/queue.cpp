#include "run/queue.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/mode.h"
#include "core/aten_call.h"
#include "core/eager_call.h"
#include "memory/shared.h"
#include "plan/compiler.h"
#include "plan/describe.h"
#include "run/cuda_graph.h"
#include "run/runner.h"

namespace tiny {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Whether someone needs the results now.
bool is_asked_for(const char* reason) {
  return reason != kLimit && reason != kTurn && reason != kAhead && reason != kSwitched;
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

std::array<std::atomic<Queue*>, Queue::kMost> Queue::all_{};

// On CUDA, kernels are launched while the program goes on recording. On the CPU the kernels would
// compete with the program for its cores.
Queue::Queue(c10::DeviceIndex device)
    : device_(device), has_thread_(host_device(device).type() == c10::kCUDA) {}

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
  auto turn = lock_to_run(reason, nullptr);
  run_turn(turn, body);
}

void Queue::run_if_pending(
    const TinyStorage& storage, const char* reason, c10::function_ref<void()> body) {
  check_usable();
  WithoutGil no_gil;
  if (has_thread_ && !is_on_its_way(storage)) {
    note_wait(reason);
    return body();  // nothing that runs knows this memory
  }
  auto turn = lock_to_run(reason, &storage);
  run_turn(turn, body);
}

void Queue::run_turn(Turn& turn, c10::function_ref<void()> body) {
  with_shared_home(device_, [&] {
    if (turn.batch.has_value()) {
      execute(std::move(*turn.batch));
      forget_signatures_if_many();
    }
    body();
  });
}

bool Queue::is_pending(const TinyStorage& storage) {
  return storage.trace == Recording(recorder)->trace.id;
}

bool Queue::is_idle() {
  return Recording(recorder)->is_idle();
}

Queue::Underway::Underway(Queue& queue, const Recording& recording)
    : queue_(&queue), trace_(recording->trace.id) {
  recording->underway.push_back(trace_);
}

Queue::Underway::~Underway() {
  if (queue_ != nullptr) {
    const Recording recording(queue_->recorder);
    auto& all = recording->underway;
    all.erase(std::find(all.begin(), all.end(), trace_));
  }
}

// Cuts off what was recorded.
std::optional<Queue::Batch> Queue::take(const char* reason) {
  Batch batch;
  batch.reason = reason;
  std::shared_ptr<const Plan> last;
  {
    const Recording recording(recorder);
    auto& trace = recording->trace;
    if (trace.empty()) {
      return std::nullopt;
    }
    batch.underway = Underway(*this, recording);
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
    recorder.is_full = false;
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
  const Recording recording(recorder);
  recording->followed = batch.plan;
  recording->is_ahead = reason == kAhead;
  recording->was_waited_for = has_thread_ && batch.hit && is_asked_for(reason);
  return batch;
}

// However it ends, what the trace should have made has a value or raises why it has none.
void Queue::execute(Batch batch) {
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
  Recording(recorder)->spare = std::move(batch.trace);
  if (const auto& failure = outcome.failure != nullptr ? outcome.failure : interrupted) {
    raise_failure(failure);
  }
}

Queue::Outcome Queue::run_batch(Batch& batch) {
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

void Queue::count(const Batch& batch, const Outcome& outcome, double seconds) {
  const Recording recording(recorder);
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

// Someone needs what ran ahead, as was expected.
void Queue::note_wait(const char* reason) {
  if (!has_thread_) {
    return;
  }
  const auto place = source_line();  // not with the lock held
  const Recording recording(recorder);
  if (!recording->is_ahead || !recording->trace.empty() || !is_asked_for(reason)) {
    return;
  }
  recording->is_ahead = false;
  recording->was_waited_for = true;
  ++recording->metrics.syncs;
  recording->metrics.causes.count(reason, place);
}

// What the program has set for the whole process must be as a run needs it, and stay so: a run that
// needs other switches has all devices to itself. One inside of another run may not wait for that.
Queue::Locks Queue::lock_running(c10::function_ref<bool()> needs_all) {
  const bool is_inside = Running::are_any_mine();
  Locks locks;
  locks.emplace_back(running_);
  if (C10_LIKELY(device_count() == 1) || is_inside || !needs_all()) {
    return locks;
  }
  locks.clear();
  return lock_all();
}

// Waits for one lock at a time, holding no other: who has one of them may wait for another.
Queue::Locks Queue::lock_all() {
  auto first = device_;
  for (;;) {
    Locks locks;
    locks.emplace_back(of(first).running_);
    for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
      if (index != first && !locks.emplace_back(of(index).running_, std::try_to_lock)) {
        first = index;
        locks.clear();
        break;
      }
    }
    if (!locks.empty()) {
      return locks;
    }
    std::this_thread::yield();
  }
}

bool Queue::needs_all() {
  const Recording recording(recorder);
  return !recording->trace.empty() && have_to_be_replaced(recording->trace.flags);
}

// The right to run, and what was recorded, cut off at a moment when nothing recorded earlier is
// still to come. Only if a storage waits for it, where one is given.
Queue::Turn Queue::lock_to_run(const char* reason, const TinyStorage* storage) {
  for (;;) {
    const bool is_inside = running_.is_mine();
    wait_for_batches();
    raise_kept_failure();
    Turn turn{lock_running([&] { return needs_all(); }), std::nullopt};
    std::unique_lock batches(batches_mutex_);
    // A kernel written in Python may use the device: nobody else can do the rest meanwhile.
    while (is_inside && !batches_.empty()) {
      auto batch = std::move(batches_.front());
      batches_.pop_front();
      batches.unlock();
      execute(std::move(batch));
      batches.lock();
    }
    if (batches_.empty()) {
      if (storage == nullptr || is_pending(*storage)) {
        turn.batch = take(reason);
      }
      if (!turn.batch.has_value()) {
        note_wait(reason);
      }
      return turn;
    }
  }
}

bool Queue::is_on_its_way(const TinyStorage& storage) {
  const Recording recording(recorder);
  const auto& underway = recording->underway;
  return storage.trace == recording->trace.id ||
      (!underway.empty() && storage.trace >= underway.front());
}

// Asks for the plan to be compiled where that is due. Returns why it cannot run, if it cannot.
std::string Queue::compile(const Trace& running, const Plan& plan) {
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
PlanGraph::Done Queue::run_as_graph(Trace& running, const Plan& plan) {
  if (!has_thread_ || depth_ > 1 || !uses_graphs.load(std::memory_order_relaxed)) {
    return PlanGraph::Done::kNothing;
  }
  if (plan.graph == nullptr) {
    plan.graph = std::make_shared<PlanGraph>();
  }
  return plan.graph->run(running, plan, device_);
}

bool Queue::install(uint64_t id, std::shared_ptr<Compiled> compiled) {
  WithoutGil no_gil;
  std::lock_guard lock(running_);
  const auto plan = plans_.by_id(id);
  if (plan == nullptr) {
    return false;
  }
  plan->compiled = std::move(compiled);
  plan->graph = nullptr;  // it is of the steps before
  return true;
}

void Queue::for_each_plan(c10::function_ref<void(const Plan&)> visit) {
  WithoutGil no_gil;
  std::lock_guard lock(running_);
  plans_.for_each(visit);
}

void Queue::run_eagerly(Operator& op, c10::Stack* stack, const char* reason) {
  run_then(reason, [&] {
    op.at_once.fetch_add(1, std::memory_order_relaxed);
    if (C10_UNLIKELY(is_portable(device_)) && are_fallbacks_refused() &&
        op.kind.load(std::memory_order_relaxed) == Operator::Kind::kEager) {
      note_fallback(device_, op.name, source_line());
    }
    call_eagerly(op, device_, stack);
    if (C10_UNLIKELY(is_portable(device_))) {
      note_fallback(device_, op.name, source_line());
    }
    forget_signatures_if_many();
  });
}

// Programs whose shapes never repeat must not fill the memory. Traces refer to signatures.
void Queue::forget_signatures_if_many() {
  const Recording recording(recorder);
  const auto most = most_signatures.load(std::memory_order_relaxed);
  if (recording->signatures.size() > most && recording->is_idle()) {
    recording->followed = nullptr;
    recording->signatures.keep(plans_.keep_recent(most / 2));
  }
}

void run_trace(c10::DeviceIndex index, const char* reason) {
  Queue::of(index).run(reason);
}

void run_trace_soon(c10::DeviceIndex index, const char* reason) {
  Queue::of(index).run_soon(reason);
}

void run_everything(const char* reason) noexcept {
  for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
    Queue::of(index).run_and_keep_failure(reason);
  }
}

}  // namespace tiny
