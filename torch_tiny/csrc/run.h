// Running what was recorded: a queue per device holds the trace and runs it in order.
#pragma once

#include <c10/util/FunctionRef.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "trace.h"

namespace tiny {

// The one reason to run a trace that is not the user's.
inline constexpr const char* kLimit = "limit";

struct Limits {
  size_t calls = 4096;
  size_t bytes = size_t{4} << 30;
};

struct Metrics {
  uint64_t calls = 0;
  uint64_t traces = 0;
  uint64_t plan_hits = 0;
  uint64_t plan_misses = 0;
  uint64_t metadata_misses = 0;
  uint64_t syncs = 0;
  uint64_t relayouts = 0;
  double seconds_recording = 0;
  double seconds_running = 0;
  // Why traces were run: reason and place -> how often.
  std::map<std::pair<std::string, Where>, uint64_t> causes;
  // Why a trace was not like the one before it, at the first call that differs.
  std::map<std::pair<std::string, Where>, uint64_t> news;
};

class Queue {
 public:
  static Queue& of(c10::DeviceIndex index) {
    auto* queue = static_cast<size_t>(index) < kMost ? all_[index] : nullptr;
    return C10_LIKELY(queue != nullptr) ? *queue : make(index);
  }

  explicit Queue(c10::DeviceIndex device) : device_(device) {}

  // Runs all that was recorded on this device so far and raises the first error found.
  void run(const char* reason);

  // Runs all that was recorded, then one operator on real memory; its results replace the stack.
  void run_at_once(Operator& op, c10::Stack* stack, const char* reason);

  // Runs all that was recorded, then `body` before anything else can run on this device.
  void run_then(const char* reason, c10::function_ref<void()> body);

  // Runs what was recorded only if a recorded call reads or writes this storage, then `body`.
  void settle(const TinyStorage& storage, const char* reason, c10::function_ref<void()> body);
  bool is_pending(const TinyStorage& storage);

  // From now on the plan runs as compiled. False if it is not known any more.
  bool install(uint64_t plan, std::shared_ptr<Compiled> compiled);
  // Calls `visit` on every plan of this device while nothing runs.
  void for_each_plan(c10::function_ref<void(const Plan&)> visit);

  // The signature of the call that came here last time; null where there was none.
  const Signature* expected() const {
    const auto next = trace.calls.size();
    return followed != nullptr && next < followed->signatures.size() ? followed->signatures[next]
                                                                     : nullptr;
  }

  std::mutex mutex;  // guards the members below while recording
  Trace trace;
  std::shared_ptr<const Plan> followed;  // of the trace before this one
  SignatureTable signatures;
  Metrics metrics;
  Limits limits;

  std::atomic<bool> is_full{false};  // the trace has grown enough to be run before the next call
  std::atomic<uint32_t> ticks{0};    // roughly the calls recorded; decides which ones are timed

  static constexpr uint64_t kHot = 2;  // runs of a plan after which it is worth compiling

 private:
  static constexpr size_t kMost = 128;  // device indices have eight bits
  static std::array<Queue*, kMost> all_;
  static Queue& make(c10::DeviceIndex index);

  void run_locked(const char* reason);
  void forget_signatures_if_many();
  std::string compile(const Trace& running, const Plan& plan);

  const c10::DeviceIndex device_;
  std::recursive_mutex running_;
  int depth_ = 0;  // a kernel written in Python may use the device, and run what it recorded
  Trace spare_;    // keeps its capacity from run to run
  PlanCache plans_;
};

void run_trace(c10::DeviceIndex index, const char* reason);
void run_everything(const char* reason);

// Releases the GIL, if this thread holds it, for as long as it lives.
class WithoutGil {
 public:
  WithoutGil();
  ~WithoutGil() noexcept(false);  // the interpreter may end this thread here
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* state_ = nullptr;
};

}  // namespace tiny
