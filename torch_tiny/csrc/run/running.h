// The locks of a queue are taken in this order: Running, that of the batches that are left to its
// thread, the recorder's (a Recording), that of the plans. None is waited for with the GIL held.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

namespace tiny {

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

}  // namespace tiny
