// The thread that runs what was recorded while the program goes on.
#include <c10/core/impl/VirtualGuardImpl.h>

#include <system_error>

#include "run/queue.h"

namespace tiny {
namespace {

constexpr size_t kMostBatches = 4;  // more would only hold memory

}  // namespace

void Queue::run_soon(const char* reason) {
  if (!executor_.may_have_thread || !executor_.has_repeated() || running_.is_mine()) {
    return run(reason);
  }
  check_usable();
  const WithoutGil no_gil;
  std::unique_lock lock(batches_mutex_);
  if (!has_server()) {
    lock.unlock();
    return run(reason);
  }
  batches_changed_.wait(lock, [&] { return batches_.size() < kMostBatches; });
  auto batch = executor_.take(reason);
  if (!batch.has_value()) {
    return;
  }
  or_fail(batch->trace, [&] {
    const auto host = host_device(device_);
    batch->stream = c10::impl::VirtualGuardImpl(host.type()).getStream(host);
    batches_.push_back(std::move(*batch));
  });
  lock.unlock();
  batches_changed_.notify_all();
}

void Queue::run_and_keep_failure(const char* reason) noexcept {
  std::exception_ptr first;
  for (bool is_done = false; !is_done;) {
    try {
      run(reason);
      is_done = true;
    } catch (...) {  // may be one that was kept before: then nothing has run
      is_done = first != nullptr;
      first = first != nullptr ? first : current_failure();
    }
  }
  if (first != nullptr) {
    const auto lock = locked(batches_mutex_);
    kept_failure_ = first;
  }
}

// Starts it where it is needed first. False if the system gives no thread.
bool Queue::has_server() {
  if (server_.load() == std::thread::id()) {
    try {
      std::thread thread([this] { serve(); });
      server_ = thread.get_id();
      thread.detach();
    } catch (const std::system_error&) {
      return false;
    }
  }
  return true;
}

void Queue::serve() {
  const WithoutGil no_gil;
  for (;;) {
    {
      std::unique_lock lock(batches_mutex_);
      batches_changed_.wait(lock, [&] { return !batches_.empty(); });
    }
    const auto locks = lock_running(no_gil, [&] {
      std::lock_guard lock(batches_mutex_);
      return !batches_.empty() && have_to_be_replaced(batches_.front().trace.flags);
    });
    Batch batch;
    {
      std::lock_guard lock(batches_mutex_);
      if (batches_.empty()) {
        continue;
      }
      batch = std::move(batches_.front());
      batches_.pop_front();
      is_serving_ = true;
    }
    std::exception_ptr failure;
    try {
      executor_.execute(std::move(batch));
    } catch (...) {
      failure = current_failure();
    }
    {
      std::lock_guard lock(batches_mutex_);
      is_serving_ = false;
      if (kept_failure_ == nullptr) {
        kept_failure_ = failure;
      }
    }
    batches_changed_.notify_all();
  }
}

void Queue::finish() {
  if (in_bad_fork()) {
    return;  // the thread stayed behind
  }
  const WithoutGil no_gil;
  try {
    wait_for_batches(no_gil);
  } catch (...) {
    return;  // the program ends, and nobody asked
  }
}

void Queue::wait_for_batches(const WithoutGil& /*proof*/) {
  if (executor_.may_have_thread && !running_.is_mine()) {
    std::unique_lock lock(batches_mutex_);
    batches_changed_.wait(lock, [&] { return batches_.empty() && !is_serving_; });
  }
}

void Queue::raise_kept_failure() {
  std::lock_guard lock(batches_mutex_);
  if (kept_failure_ != nullptr) {
    raise_failure(std::exchange(kept_failure_, nullptr));
  }
}

}  // namespace tiny
