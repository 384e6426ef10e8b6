#include "run/queue.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/eager_call.h"
#include "memory/portable.h"
#include "memory/shared.h"

namespace tiny {

std::array<std::atomic<Queue*>, Queue::kMost> Queue::all_{};

Queue::Queue(c10::DeviceIndex device) : device_(device), executor_(device, recorder) {}

Queue& Queue::make(c10::DeviceIndex index) {
  static const bool made = [] {
    for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
      all_[i] = new Queue(i);
    }
    return true;
  }();
  TORCH_CHECK(made && index >= 0 && index < device_count(), "there is no device tiny:", int{index});
  return *all_[index];
}

void Queue::run(const char* reason) {
  run_then(reason, [] {});
}

void Queue::run_then(const char* reason, c10::function_ref<void()> body) {
  check_usable();
  const WithoutGil no_gil;
  auto turn = lock_to_run(no_gil, reason, nullptr);
  run_turn(turn, body);
}

void Queue::run_if_pending(
    const TinyStorage& storage, const char* reason, c10::function_ref<void()> body) {
  check_usable();
  const WithoutGil no_gil;
  if (executor_.may_have_thread && !is_on_its_way(storage)) {
    note_wait(reason);
    return body();  // nothing that runs knows this memory
  }
  auto turn = lock_to_run(no_gil, reason, &storage);
  run_turn(turn, body);
}

void Queue::run_turn(Turn& turn, c10::function_ref<void()> body) {
  with_shared_home(device_, [&] {
    if (turn.batch.has_value()) {
      executor_.execute(std::move(*turn.batch));
      executor_.forget_signatures_if_many();
    }
    body();
  });
}

bool Queue::is_pending(const TinyStorage& storage) {
  return storage.trace == Recording(recorder)->trace.id;
}

bool Queue::is_idle() {
  return Recording(recorder)->is_idle();
}

// Someone needs what ran ahead, as was expected.
void Queue::note_wait(const char* reason) {
  if (!executor_.may_have_thread) {
    return;
  }
  const auto place = source_line();  // not with the lock held
  const Recording recording(recorder);
  if (!recording->is_ahead || !recording->trace.empty() || !is_asked_for(reason)) {
    return;
  }
  recording->is_ahead = false;
  recording->was_waited_for = true;
  ++recording->metrics.syncs;
  recording->metrics.causes.count(reason, place);
}

// What the program has set for the whole process must be as a run needs it, and stay so: a run that
// needs other switches has all devices to itself. One inside of another run may not wait for that.
Queue::Locks Queue::lock_running(const WithoutGil& no_gil, c10::function_ref<bool()> needs_all) {
  const bool is_inside = Running::are_any_mine();
  Locks locks;
  locks.push_back(running_.wait(no_gil));
  if (C10_LIKELY(device_count() == 1) || is_inside || !needs_all()) {
    return locks;
  }
  locks.clear();
  return lock_all(no_gil);
}

// Waits for one lock at a time, holding no other: who has one of them may wait for another.
Queue::Locks Queue::lock_all(const WithoutGil& no_gil) {
  auto first = device_;
  for (;;) {
    Locks locks;
    locks.push_back(of(first).running_.wait(no_gil));
    for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
      if (index != first && !locks.emplace_back(of(index).running_.try_now())) {
        first = index;
        locks.clear();
        break;
      }
    }
    if (!locks.empty()) {
      return locks;
    }
    std::this_thread::yield();
  }
}

bool Queue::needs_all() {
  const Recording recording(recorder);
  return !recording->trace.empty() && have_to_be_replaced(recording->trace.flags);
}

// The right to run, and what was recorded, cut off at a moment when nothing recorded earlier is
// still to come. Only if a storage waits for it, where one is given.
Queue::Turn Queue::lock_to_run(
    const WithoutGil& no_gil, const char* reason, const TinyStorage* storage) {
  for (;;) {
    const bool is_inside = running_.is_mine();
    wait_for_batches(no_gil);
    raise_kept_failure();
    Turn turn{lock_running(no_gil, [&] { return needs_all(); }), std::nullopt};
    std::unique_lock batches(batches_mutex_);
    // A kernel written in Python may use the device: nobody else can do the rest meanwhile.
    while (is_inside && !batches_.empty()) {
      auto batch = std::move(batches_.front());
      batches_.pop_front();
      batches.unlock();
      executor_.execute(std::move(batch));
      batches.lock();
    }
    if (batches_.empty()) {
      if (storage == nullptr || is_pending(*storage)) {
        turn.batch = executor_.take(reason);
      }
      if (!turn.batch.has_value()) {
        note_wait(reason);
      }
      return turn;
    }
  }
}

bool Queue::is_on_its_way(const TinyStorage& storage) {
  const Recording recording(recorder);
  const auto& underway = recording->underway;
  return storage.trace == recording->trace.id ||
      (!underway.empty() && storage.trace >= underway.front());
}

bool Queue::install(uint64_t id, std::shared_ptr<Compiled> compiled) {
  const WithoutGil no_gil;
  const auto lock = running_.wait(no_gil);
  return executor_.install(id, std::move(compiled));
}

void Queue::for_each_plan(c10::function_ref<void(const Plan&)> visit) {
  const WithoutGil no_gil;
  const auto lock = running_.wait(no_gil);
  executor_.for_each_plan(visit);
}

void Queue::run_eagerly(Operator& op, c10::Stack* stack, const char* reason) {
  run_then(reason, [&] {
    op.at_once.fetch_add(1, std::memory_order_relaxed);
    if (C10_UNLIKELY(is_portable(device_)) && are_fallbacks_refused() &&
        op.kind.load(std::memory_order_relaxed) == Operator::Kind::kEager) {
      note_fallback(device_, op.name, source_line());
    }
    call_eagerly(op, device_, stack);
    if (C10_UNLIKELY(is_portable(device_))) {
      note_fallback(device_, op.name, source_line());
    }
    executor_.forget_signatures_if_many();
  });
}

void run_trace(c10::DeviceIndex index, const char* reason) {
  Queue::of(index).run(reason);
}

void run_trace_soon(c10::DeviceIndex index, const char* reason) {
  Queue::of(index).run_soon(reason);
}

void run_everything(const char* reason) noexcept {
  if (in_bad_fork()) {
    return;
  }
  const bool is_inside = Running::are_any_mine();
  for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
    auto& queue = Queue::of(index);
    // Who runs on another device may be waiting for this one.
    if (!is_inside || queue.is_running_here()) {
      queue.run_and_keep_failure(reason);
    }
  }
}

bool drop_old_plans() {
  const WithoutGil no_gil;
  std::vector<Moment> moments;
  for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
    Queue::of(index).plans().add_moments(moments);
  }
  if (moments.empty()) {
    return false;
  }
  std::sort(moments.begin(), moments.end());
  const auto in_use_since = std::chrono::steady_clock::now() - std::chrono::seconds(1);
  const auto kept_since = std::min(moments[moments.size() / 8] + Moment::duration(1), in_use_since);
  for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
    Queue::of(index).plans().drop_older(kept_since);
  }
  return moments.front() < kept_since;
}

bool call_while_idle(c10::function_ref<void()> body) {
  if (in_bad_fork()) {
    body();  // a thread that stayed behind may have a lock
    return true;
  }
  c10::SmallVector<std::optional<Recording>, 2> held;
  for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
    const auto& recording = held.emplace_back(Recording::try_now(Queue::of(index).recorder));
    if (!recording.has_value() || !(*recording)->is_idle()) {
      return false;
    }
  }
  body();
  return true;
}

}  // namespace tiny
