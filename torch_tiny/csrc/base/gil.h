// The interpreter's lock, held and released by scopes; and a mutex whose holder may want it.
#pragma once

#include <c10/macros/Macros.h>

#include <mutex>

namespace tiny {

// An interpreter that ends also ends the threads that ask for its lock, by unwinding them, which
// no destructor and no catch of ours may be in the way of. Both of these let such a thread stand
// still instead: it has nothing left to do.

// Releases the GIL, if this thread holds it, for as long as it lives. What may wait for others
// takes one, as a proof.
class WithoutGil {
 public:
  WithoutGil();
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* state_ = nullptr;
};

// Holds the GIL for as long as it lives.
class WithGil {
 public:
  WithGil();
  ~WithGil();
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  int state_;
};

// Locks a mutex whose holder may want the GIL, as every reference to a tensor that Python knows
// may: whoever waits for it does not hold the GIL.
template <typename Mutex>
std::unique_lock<Mutex> locked(Mutex& mutex) {
  std::unique_lock lock(mutex, std::try_to_lock);
  if (C10_UNLIKELY(!lock.owns_lock())) {
    const WithoutGil no_gil;
    lock.lock();
  }
  return lock;
}

}  // namespace tiny
