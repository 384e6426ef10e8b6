#include "base/choice.h"

#include <algorithm>

namespace tiny {

void Choice::decide(int threads, Engine engine) {
  known_[threads] = engine;
  if (threads == threads_) {
    best_ = engine;
    decided_ = true;
  }
}

void Choice::begin(int threads) {
  threads_ = threads;
  turn_ = 0;
  shortest_ = {1e30, 1e30};
  const auto known = known_.find(threads);
  decided_ = known != known_.end();
  best_ = decided_ ? known->second : Engine::kAten;
}

void Choice::add(Engine engine, double seconds) {
  if (turn_ >= 2) {
    auto& shortest = shortest_[static_cast<size_t>(engine)];
    shortest = std::min(shortest, seconds);
  }
  if (++turn_ >= kTurns) {
    const bool is_uop = this->seconds(Engine::kUop) < this->seconds(Engine::kAten);
    decide(threads_, is_uop ? Engine::kUop : Engine::kAten);
    decisions_.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace tiny
