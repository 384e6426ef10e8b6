// Which of two ways to run something, from measurements that take turns on real runs.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <map>

namespace tiny {

class Choice {
 public:
  enum class Engine : uint8_t { kAten, kUop };

  // The way of this run, which has so many threads: the choice is one for each number of them.
  Engine next(int threads) {
    if (threads != threads_) {
      begin(threads);
    }
    // In an order without a period: code may stand in any number of places of a program.
    return decided_ ? best_ : std::popcount(turn_) % 2 == 0 ? Engine::kUop : Engine::kAten;
  }
  // Runs `body` in this way, and takes note of the time if there is still something to choose and
  // `body` says that it did all of its work.
  template <typename Body>
  void run(Engine engine, const Body& body) {
    if (decided_) {
      body();
      return;
    }
    const auto begin = std::chrono::steady_clock::now();
    if (body()) {
      add(engine, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
  }
  void decide(int threads, Engine engine);

  // Of the last run.
  bool decided() const {
    return decided_;
  }
  int threads() const {
    return threads_;
  }
  // How many choices were made by measuring, in the whole process.
  static uint64_t decisions() {
    return decisions_.load(std::memory_order_relaxed);
  }
  // All that was decided, by numbers of threads.
  const std::map<int, Engine>& known() const {
    return known_;
  }
  double seconds(Engine engine) const {
    return shortest_[static_cast<size_t>(engine)];
  }

 private:
  void begin(int threads);
  void add(Engine engine, double seconds);

  static constexpr unsigned kTurns = 14;  // seven each, and the first of each does not count
  static constexpr int kNeverRun = -1;

  static inline std::atomic<uint64_t> decisions_{0};
  std::map<int, Engine> known_;  // by numbers of threads
  int threads_ = kNeverRun;
  unsigned turn_ = 0;
  bool decided_ = false;
  Engine best_ = Engine::kAten;
  std::array<double, 2> shortest_{1e30, 1e30};
};

}  // namespace tiny
