// A trace that was cut off to be run.
#pragma once

#include <c10/core/Stream.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "run/recorder.h"

namespace tiny {

// Reasons to run a trace that are not the user's.
inline constexpr const char* kLimit = "limit";
// Where a thread runs what was recorded: a backward pass begins or has ended.
inline constexpr const char* kTurn = "turn of a backward pass";
// A call that was waited for alone the last time is not kept until it is again.
inline constexpr const char* kAhead = "ahead of the wait";
// What follows was recorded under other switches of PyTorch's.
inline constexpr const char* kSwitched = "a switch of PyTorch was changed";

// Whether someone needs the results now.
inline bool is_asked_for(const char* reason) {
  return reason != kLimit && reason != kTurn && reason != kAhead && reason != kSwitched;
}

// While it lives, readers of what a trace computes wait for it.
class Underway {
 public:
  Underway() = default;
  explicit Underway(const Recording& recording)
      : recorder_(&recording.recorder()), trace_(recording->trace.id) {
    recording->underway.push_back(trace_);
  }
  Underway(Underway&& other) noexcept
      : recorder_(std::exchange(other.recorder_, nullptr)), trace_(other.trace_) {}
  Underway& operator=(Underway&& other) noexcept {
    std::swap(recorder_, other.recorder_);
    std::swap(trace_, other.trace_);
    return *this;
  }
  ~Underway() {
    if (recorder_ != nullptr) {
      const Recording recording(*recorder_);
      auto& all = recording->underway;
      all.erase(std::find(all.begin(), all.end(), trace_));
    }
  }

 private:
  Recorder* recorder_ = nullptr;
  uint64_t trace_ = 0;
};

// With all that has to be known of the moment when it was cut off.
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

}  // namespace tiny
