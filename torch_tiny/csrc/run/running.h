// The right to run on a device. A kernel written in Python may use the device while it has it.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

#include "base/gil.h"
#include "base/lock_order.h"

namespace tiny {

class Running {
 public:
  std::unique_lock<Running> wait(const WithoutGil& /*proof*/) {
    return std::unique_lock(*this);
  }
  std::unique_lock<Running> try_now() {
    return {*this, std::try_to_lock};
  }
  bool is_mine() const {
    return holder_.load() == std::this_thread::get_id();
  }
  static bool are_any_mine() {
    return held_here > 0;
  }

 private:
  friend class std::unique_lock<Running>;

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
  void entered() {
    ++held_here;
    ++depth_;
    holder_ = std::this_thread::get_id();
  }

  static inline thread_local int held_here = 0;
  Ordered<Rank::kRunning, std::recursive_mutex> mutex_;
  int depth_ = 0;
  std::atomic<std::thread::id> holder_;
};

}  // namespace tiny
