// Running what was recorded: a queue per device holds the trace and runs it in order.
#pragma once

#include <c10/util/FunctionRef.h>

#include <c10/core/Stream.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/gil.h"
#include "run/cuda_graph.h"

namespace tiny {

// A reason to run a trace that is not the user's.
inline constexpr const char* kLimit = "limit";
// Another one, where a thread runs what was recorded: a backward pass begins or has ended.
inline constexpr const char* kTurn = "turn of a backward pass";

// And a third: a call that was waited for alone the last time is not kept until it is again.
inline constexpr const char* kAhead = "ahead of the wait";

// And a fourth: what follows was recorded under other switches of PyTorch's.
inline constexpr const char* kSwitched = "a switch of PyTorch was changed";

struct Limits {
  size_t calls = 4096;
  size_t bytes = size_t{4} << 30;
};

// How often something happened at a place of the program.
class Occasions {
 public:
  using Map = std::map<std::pair<std::string, SourceLine>, uint64_t>;

  Occasions() = default;
  Occasions(Occasions&&) = default;
  Occasions& operator=(Occasions&&) = default;

  // Short traces are many: what was counted before is found without a string of its own.
  void count(std::string_view what, const SourceLine& place, uint64_t times = 1) {
    if (last_ == nullptr || last_->first.first != what || last_->first.second != place) {
      last_ = &*counts_.try_emplace({std::string(what), place}, 0).first;
    }
    last_->second += times;
  }
  const Map& counts() const {
    return counts_;
  }

 private:
  Map counts_;
  Map::value_type* last_ = nullptr;
};

struct Metrics {
  uint64_t calls = 0;
  uint64_t traces = 0;
  uint64_t plan_hits = 0;
  uint64_t plan_misses = 0;
  uint64_t metadata_misses = 0;
  uint64_t syncs = 0;
  uint64_t relayouts = 0;
  uint64_t products = 0;    // by oneDNN
  uint64_t graphs = 0;      // CUDA graphs that were captured
  uint64_t graph_runs = 0;  // traces that ran as one
  double seconds_recording = 0;
  double seconds_running = 0;
  // Why traces were run: reason and place -> how often.
  Occasions causes;
  // Why a trace was not like the one before it, at the first call that differs.
  Occasions miss_reasons;
};

// Whether plans on CUDA memory become CUDA graphs; TORCH_TINY_CUDA_GRAPHS=0 says no.
inline std::atomic<bool> uses_graphs{true};

// The right to run on a device. A kernel written in Python may use the device while it has it.
class Running {
 public:
  void lock() {
    mutex_.lock();
    entered();
  }
  bool try_lock() {
    const bool is_locked = mutex_.try_lock();
    if (is_locked) {
      entered();
    }
    return is_locked;
  }
  void unlock() {
    --held_here;
    if (--depth_ == 0) {
      holder_ = std::thread::id();
    }
    mutex_.unlock();
  }
  bool is_mine() const {
    return holder_.load() == std::this_thread::get_id();
  }
  static bool are_any_mine() {
    return held_here > 0;
  }

 private:
  void entered() {
    ++held_here;
    ++depth_;
    holder_ = std::this_thread::get_id();
  }

  static inline thread_local int held_here = 0;
  std::recursive_mutex mutex_;
  int depth_ = 0;
  std::atomic<std::thread::id> holder_;
};

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
    return has_thread_ && (place.node != nullptr) != in_backward.load(std::memory_order_relaxed);
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

  // Whether a call under these flags can be recorded behind those before it; with the mutex held.
  // Denormals are a thread's own, and autograd's thread acts for the one that has called it.
  bool accepts(Flags flags, const SourceLine& place) {
    (place.node == nullptr ? denormals_ : flags.denormals) =
        place.node == nullptr ? flags.denormals : denormals_;
    return trace.accepts(flags);
  }

  // The signature of the call that came here last time; null where there was none.
  const Signature* expected() const {
    const auto next = trace.calls.size();
    return followed != nullptr && next < followed->signatures.size() ? followed->signatures[next]
                                                                     : nullptr;
  }

  // Whether the call that was just noted is all that was waited for the last time: a GPU can work
  // while the program is on its way to wait for it again. Called with the mutex held.
  bool is_all_again() const {
    return was_waited_for && trace.calls.size() == 1 && followed != nullptr &&
        followed->signatures.size() == 1 && followed->signatures[0] == trace.calls[0].signature;
  }

  std::mutex mutex;  // guards the members below while recording
  Trace trace;
  std::shared_ptr<const Plan> followed;  // of the trace before this one
  bool was_waited_for = false;  // that trace, by someone who needed it; where a thread runs
  SignatureTable signatures;
  Metrics metrics;
  Limits limits;

  std::atomic<bool> is_full{false};  // the trace has grown enough to be run before the next call
  std::atomic<uint32_t> ticks{0};    // roughly the calls recorded; decides which ones are timed
  std::atomic<bool> in_backward{false};

  static constexpr uint64_t kHot = 2;  // runs of a plan after which it is worth compiling

 private:
  static constexpr size_t kMost = 128;  // device indices have eight bits
  static std::array<std::atomic<Queue*>, kMost> all_;
  static Queue& make(c10::DeviceIndex index);

  // While it lives, readers of what a trace computes wait for it.
  class Underway {
   public:
    Underway() = default;
    Underway(Queue& queue, uint64_t trace);  // with the mutex held
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
  bool is_idle_when_locked() const {
    return trace.empty() && underway_.empty();
  }
  void note_wait(const char* reason);
  void forget_signatures_if_many();
  std::string compile(const Trace& running, const Plan& plan);
  PlanGraph::Done run_as_graph(Trace& running, const Plan& plan);

  const c10::DeviceIndex device_;
  Running running_;
  int depth_ = 0;  // a kernel written in Python may use the device, and run what it recorded
  bool is_ahead_ = false;           // the last trace ran before anyone asked; guarded by `mutex`
  uint32_t denormals_ = 0;          // of the last call outside of a backward pass; likewise
  Trace spare_;                     // keeps its capacity from run to run; guarded by `mutex`
  std::vector<uint64_t> underway_;  // traces cut off and not done, oldest first; likewise
  PlanCache plans_;
  std::mutex plans_mutex_;

  // Traces left to a thread; the locks are taken in the order running_, batches_mutex_, mutex.
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
