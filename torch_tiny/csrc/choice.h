// Which of two ways to run something, from measurements that take turns on real runs.
#pragma once

#include <array>
#include <bit>
#include <chrono>
#include <cstdint>

namespace tiny {

class Choice {
 public:
  enum class Engine : uint8_t { kAten, kUop };

  Engine next() const {
    // In an order without a period: code may stand in any number of places of a program.
    return decided_ ? best_ : std::popcount(turn_) % 2 == 0 ? Engine::kUop : Engine::kAten;
  }
  bool decided() const {
    return decided_;
  }
  // Runs `body` in this way, and takes note of the time if there is still something to choose.
  template <typename Body>
  void run(Engine engine, const Body& body) {
    if (decided_) {
      return body();
    }
    const auto begin = std::chrono::steady_clock::now();
    body();
    add(engine, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  void decide(Engine engine) {
    best_ = engine;
    decided_ = true;
  }
  double seconds(Engine engine) const {
    return shortest_[static_cast<size_t>(engine)];
  }

 private:
  void add(Engine engine, double seconds);

  static constexpr unsigned kTurns = 14;  // seven each, and the first of each does not count

  unsigned turn_ = 0;
  bool decided_ = false;
  Engine best_ = Engine::kAten;
  std::array<double, 2> shortest_{1e30, 1e30};
};

}  // namespace tiny
