// The door to the compiler, which is Python in other processes: traces worth compiling go out as
// jobs, compiled plans come back to their queue. Nothing here waits for it, except in mode `uop`.
#pragma once

#include <c10/util/ArrayRef.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/device.h"
#include "base/source_line.h"
#include "plan/compiled.h"

namespace tiny {

struct Plan;

struct Job {
  c10::DeviceIndex device = 0;
  uint64_t plan = 0;
  std::weak_ptr<const Plan> known;      // nothing is compiled for a plan that is gone
  std::string trace;                    // see describe.h
  std::vector<SourceLine> places = {};  // of its calls
};

class Compiler {
 public:
  static Compiler& get();
  // In a forked child: its locks may be held by threads that stayed behind.
  static void renew();

  // While someone listens, the text of every trace that runs is kept.
  std::atomic<bool> listens{false};
  void hear(std::string trace);
  std::vector<std::string> heard();

  // Too many may wait already: then the plan is remembered, and due again once there is room.
  void offer(c10::DeviceIndex device, uint64_t plan, const std::function<Job()>& make);
  bool is_due_again(c10::DeviceIndex device, uint64_t plan);
  std::atomic<uint64_t> postponed{0};  // how often that happened
  // The job of the plan that has taken most time so far, or nothing after this long or when woken.
  std::optional<Job> take(std::chrono::duration<double> patience);
  void wake();

  // Compiles and installs at once; returns what went wrong. Called without the GIL.
  std::function<std::string(const Job&)> compile_now;
  // The same for portable devices; what cannot be compiled runs on the host.
  std::function<std::string(const Job&)> compile_portable;

 private:
  static constexpr size_t kMostWaiting = 64;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::atomic<bool> has_late_{false};
  std::set<std::pair<uint64_t, c10::DeviceIndex>> late_;  // plans not taken, the oldest first
  bool woken_ = false;
  std::vector<std::string> heard_;
};

// Ctrl-C while this thread compiled: raised after the trace, whose calls have run as they were.
inline thread_local std::exception_ptr interruption;

// Calls kernels of a region in order; `buffers` are its buffers.
void run_kernels(
    const Code& code,
    const std::vector<Kernel>& kernels,
    c10::ArrayRef<void*> buffers,
    char* arena);
// Brings home what could not be computed in place.
void copy_home(const Code& code, c10::ArrayRef<void*> buffers, char* arena);
// The same on the current stream of a GPU; numbers are on the host.
void launch_kernels(
    const Region& region, c10::ArrayRef<void*> buffers, char* arena, c10::Device device);

}  // namespace tiny
