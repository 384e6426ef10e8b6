// Running what was recorded: a queue per device holds the trace and runs it in order.
#pragma once

#include <c10/util/FunctionRef.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "run/executor.h"
#include "run/running.h"

namespace tiny {

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
  bool is_running_here() const {
    return running_.is_mine();
  }

  // Whether a call recorded here is the first of a backward pass, or the first after one: places
  // where a thread of its own is given what was recorded so far.
  bool turns(const SourceLine& place) const {
    return executor_.may_have_thread &&
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

  PlanCache& plans() {
    return executor_.plans();
  }

  Recorder recorder;

 private:
  static constexpr size_t kMost = 128;  // device indices have eight bits
  static std::array<std::atomic<Queue*>, kMost> all_;
  static Queue& make(c10::DeviceIndex index);

  // On this device, or on all of them.
  using Locks = c10::SmallVector<std::unique_lock<Running>, 2>;

  struct Turn {
    Locks locks;
    std::optional<Batch> batch;
  };

  Locks lock_running(const WithoutGil& no_gil, c10::function_ref<bool()> needs_all);
  Locks lock_all(const WithoutGil& no_gil);
  bool needs_all();
  Turn lock_to_run(const WithoutGil& no_gil, const char* reason, const TinyStorage* storage);
  void run_turn(Turn& turn, c10::function_ref<void()> body);
  void wait_for_batches(const WithoutGil& no_gil);
  void raise_kept_failure();
  bool has_server();
  void serve();
  bool is_on_its_way(const TinyStorage& storage);
  void note_wait(const char* reason);

  const c10::DeviceIndex device_;
  Running running_;
  Executor executor_;

  // Traces left to a thread.
  Ordered<Rank::kBatches> batches_mutex_;
  std::condition_variable_any batches_changed_;
  std::deque<Batch> batches_;
  bool is_serving_ = false;
  std::atomic<std::thread::id> server_;
  std::exception_ptr kept_failure_;  // that nobody could be told of
};

void run_trace(c10::DeviceIndex index, const char* reason);
void run_trace_soon(c10::DeviceIndex index, const char* reason);
// On all devices, or on those that this thread is running on; whoever runs next on one hears of an
// error there.
void run_everything(const char* reason) noexcept;
// Of all devices, an eighth of the plans: those not used for longest. False if all are in use: what
// goes must not have to come back at once.
bool drop_old_plans();
// Calls `body` while nothing is recorded, nor has been on any device that has not run. False if
// that is not so now.
bool call_while_idle(c10::function_ref<void()> body);

}  // namespace tiny
