// What is being recorded on a device. It is reached through a Recording, which holds the lock.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "base/gil.h"
#include "base/lock_order.h"
#include "core/signature.h"
#include "core/trace.h"
#include "plan/plan.h"
#include "run/metrics.h"

namespace tiny {

struct Limits {
  size_t calls = 4096;
  size_t bytes = size_t{4} << 30;
};

struct RecorderState {
  // Whether a call under these flags can be recorded behind those before it.
  // Denormals are a thread's own, and autograd's thread acts for the one that has called it.
  bool accepts(Flags flags, const SourceLine& place) {
    (place.node == nullptr ? denormals : flags.denormals) =
        place.node == nullptr ? flags.denormals : denormals;
    return trace.accepts(flags);
  }

  // The signature of the call that came here last time; null where there was none.
  const Signature* expected() const {
    const auto next = trace.calls.size();
    return followed != nullptr && next < followed->signatures.size() ? followed->signatures[next]
                                                                     : nullptr;
  }

  // Whether the call that was just noted is all that was waited for the last time: a GPU can work
  // while the program is on its way to wait for it again.
  bool is_all_again() const {
    return was_waited_for && trace.calls.size() == 1 && followed != nullptr &&
        followed->signatures.size() == 1 && followed->signatures[0] == trace.calls[0].signature;
  }

  bool is_idle() const {
    return trace.empty() && underway.empty();
  }

  Trace trace;
  std::shared_ptr<const Plan> followed;  // of the trace before this one
  bool was_waited_for = false;     // that trace, by someone who needed it; where a thread runs
  bool is_ahead = false;           // that trace ran before anyone asked
  uint32_t denormals = 0;          // of the last call outside of a backward pass
  Trace spare;                     // keeps its capacity from run to run
  std::vector<uint64_t> underway;  // traces cut off and not done, oldest first
  SignatureTable signatures;
  Metrics metrics;
  Limits limits;
};

class Recorder {
 public:
  // Read without the lock.
  std::atomic<bool> is_full{false};  // the trace has grown enough to be run before the next call
  std::atomic<uint32_t> ticks{0};    // roughly the calls recorded; decides which ones are timed
  std::atomic<bool> in_backward{false};

 private:
  friend class Recording;

  Ordered<Rank::kRecorder> mutex_;
  RecorderState state_;
};

// The right to what is recorded, for as long as it lives. Its holder may want the GIL, so nobody
// waits for it with the GIL held.
class Recording {
 public:
  explicit Recording(Recorder& recorder) : recorder_(&recorder), lock_(locked(recorder.mutex_)) {}

  // Empty if somebody else has it. The GIL may be held.
  static std::optional<Recording> try_now(Recorder& recorder) {
    std::unique_lock lock(recorder.mutex_, std::try_to_lock);
    return lock ? std::optional(Recording(recorder, std::move(lock))) : std::nullopt;
  }

  RecorderState* operator->() const {
    return &recorder_->state_;
  }
  Recorder& recorder() const {
    return *recorder_;
  }
  void unlock() {
    lock_.unlock();
  }

 private:
  using Lock = std::unique_lock<Ordered<Rank::kRecorder>>;
  Recording(Recorder& recorder, Lock lock) : recorder_(&recorder), lock_(std::move(lock)) {}

  Recorder* recorder_;
  Lock lock_;
};

}  // namespace tiny
