// Running what was recorded: a queue per device holds the trace and runs it in order.
#pragma once

#include <c10/util/FunctionRef.h>

#include <c10/core/Stream.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/gil.h"
#include "run/cuda_graph.h"
#include "run/recorder.h"
#include "run/running.h"

namespace tiny {

// A reason to run a trace that is not the user's.
inline constexpr const char* kLimit = "limit";
// Another one, where a thread runs what was recorded: a backward pass begins or has ended.
inline constexpr const char* kTurn = "turn of a backward pass";

// And a third: a call that was waited for alone the last time is not kept until it is again.
inline constexpr const char* kAhead = "ahead of the wait";

// And a fourth: what follows was recorded under other switches of PyTorch's.
inline constexpr const char* kSwitched = "a switch of PyTorch was changed";

// Whether plans on CUDA memory become CUDA graphs; TORCH_TINY_CUDA_GRAPHS=0 says no.
inline std::atomic<bool> uses_graphs{true};

class Queue {
 public:
  static Queue& of(c10::DeviceIndex index) {
    auto* queue =
        static_cast<size_t>(index) < kMost ? all_[index].load(std::memory_order_acquire) : nullptr;
    return C10_LIKELY(queue != nullptr) ? *queue : make(index);
  }

  explicit Queue(c10::DeviceIndex device);

  // Runs all that was recorded on this device so far and raises the first error found.
  void run(const char* reason);

  // The same where a thread of its own would not pay. Else leaves it to that thread and returns;
  // whoever needs the results, or runs anything on this device, waits for it and hears of errors.
  void run_soon(const char* reason);

  // The same for who cannot be told of an error: whoever runs next on this device hears of it.
  void run_and_keep_failure(const char* reason) noexcept;

  // Before the process ends: waits for what was left to the thread.
  void finish();

  // Whether all that was recorded has run. Waits for nothing.
  bool is_idle();

  // Whether a call recorded here is the first of a backward pass, or the first after one: places
  // where a thread of its own is given what was recorded so far.
  bool turns(const SourceLine& place) const {
    return has_thread_ &&
        (place.node != nullptr) != recorder.in_backward.load(std::memory_order_relaxed);
  }

  // Runs all that was recorded, then one operator on real memory; its results replace the stack.
  void run_eagerly(Operator& op, c10::Stack* stack, const char* reason);

  // Runs all that was recorded, then `body` before anything else can run on this device.
  void run_then(const char* reason, c10::function_ref<void()> body);

  // Runs what was recorded only if a recorded call reads or writes this storage, then `body`.
  void run_if_pending(
      const TinyStorage& storage, const char* reason, c10::function_ref<void()> body);
  bool is_pending(const TinyStorage& storage);

  // From now on the plan runs as compiled. False if it is not known any more.
  bool install(uint64_t plan, std::shared_ptr<Compiled> compiled);
  // Calls `visit` on every plan of this device while nothing runs.
  void for_each_plan(c10::function_ref<void(const Plan&)> visit);

  Recorder recorder;

  static constexpr uint64_t kHot = 2;  // runs of a plan after which it is worth compiling

 private:
  static constexpr size_t kMost = 128;  // device indices have eight bits
  static std::array<std::atomic<Queue*>, kMost> all_;
  static Queue& make(c10::DeviceIndex index);

  // While it lives, readers of what a trace computes wait for it.
  class Underway {
   public:
    Underway() = default;
    Underway(Queue& queue, const Recording& recording);
    Underway(Underway&& other) noexcept
        : queue_(std::exchange(other.queue_, nullptr)), trace_(other.trace_) {}
    Underway& operator=(Underway&& other) noexcept {
      std::swap(queue_, other.queue_);
      std::swap(trace_, other.trace_);
      return *this;
    }
    ~Underway();

   private:
    Queue* queue_ = nullptr;
    uint64_t trace_ = 0;
  };

  // A trace that is about to run, and all that has to be known when it was cut off.
  struct Batch {
    Underway underway;
    Trace trace;
    std::shared_ptr<const Plan> plan;
    bool hit = false;
    std::pair<std::string, SourceLine> miss_reason;
    const char* reason = "";
    SourceLine place;
    std::optional<c10::Stream> stream;  // of the thread that recorded it
  };

  // On this device, or on all of them.
  using Locks = c10::SmallVector<std::unique_lock<Running>, 2>;

  struct Turn {
    Locks locks;
    std::optional<Batch> batch;
  };

  // What became of a batch.
  struct Outcome {
    std::exception_ptr failure;
    uint64_t relayouts = 0;
    uint64_t products = 0;  // by oneDNN
    PlanGraph::Done as_graph = PlanGraph::Done::kNothing;
  };

  std::optional<Batch> take(const char* reason);
  void execute(Batch batch);
  Outcome run_batch(Batch& batch);
  void count(const Batch& batch, const Outcome& outcome, double seconds);
  Locks lock_running(c10::function_ref<bool()> needs_all);
  Locks lock_all();
  bool needs_all();
  Turn lock_to_run(const char* reason, const TinyStorage* storage);
  void run_turn(Turn& turn, c10::function_ref<void()> body);
  void wait_for_batches();
  void raise_kept_failure();
  bool has_server();
  void serve();
  bool is_on_its_way(const TinyStorage& storage);
  void note_wait(const char* reason);
  void forget_signatures_if_many();
  std::string compile(const Trace& running, const Plan& plan);
  PlanGraph::Done run_as_graph(Trace& running, const Plan& plan);

  const c10::DeviceIndex device_;
  Running running_;
  int depth_ = 0;  // a kernel written in Python may use the device, and run what it recorded
  PlanCache plans_;

  // Traces left to a thread.
  const bool has_thread_;
  // Before that the thread would only set up libraries that the program's own has set up already.
  std::atomic<bool> has_repeated_{false};
  std::mutex batches_mutex_;
  std::condition_variable batches_changed_;
  std::deque<Batch> batches_;
  bool is_serving_ = false;
  std::atomic<std::thread::id> server_;
  std::exception_ptr kept_failure_;  // that nobody could be told of
};

void run_trace(c10::DeviceIndex index, const char* reason);
void run_trace_soon(c10::DeviceIndex index, const char* reason);
// On all devices; whoever runs next on one hears of an error there.
void run_everything(const char* reason) noexcept;

}  // namespace tiny
