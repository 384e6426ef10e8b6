// The order in which the locks of a device are taken. A build that checks itself (make tsan, make
// asan) ends where a thread breaks it, or waits with the GIL held for one whose holder may want it.
#pragma once

#include <mutex>

namespace tiny {

enum class Rank {
  kRunning,   // the right to run on a device
  kBatches,   // what is left to its thread
  kRecorder,  // what is being recorded
  kPlans,     // what is known of traces
};

#ifdef TINY_CHECKS
inline constexpr bool kChecksLocks = true;
#else
inline constexpr bool kChecksLocks = false;
#endif

// What this thread holds, and whether it may wait for one more.
class HeldLocks {
 public:
  static void waits_for(Rank rank);
  static void add(Rank rank);
  static void drop(Rank rank);
};

// A mutex that has a place in the order.
template <Rank rank, typename Mutex = std::mutex>
class Ordered {
 public:
  void lock() {
    if constexpr (kChecksLocks) {
      HeldLocks::waits_for(rank);
    }
    mutex_.lock();
    if constexpr (kChecksLocks) {
      HeldLocks::add(rank);
    }
  }
  bool try_lock() {
    const bool is_locked = mutex_.try_lock();
    if constexpr (kChecksLocks) {
      if (is_locked) {
        HeldLocks::add(rank);
      }
    }
    return is_locked;
  }
  void unlock() {
    if constexpr (kChecksLocks) {
      HeldLocks::drop(rank);
    }
    mutex_.unlock();
  }

 private:
  Mutex mutex_;
};

}  // namespace tiny
