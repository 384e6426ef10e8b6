#include "choice.h"

#include <algorithm>

namespace tiny {

void Choice::add(Engine engine, double seconds) {
  if (turn_ >= 2) {
    auto& shortest = shortest_[static_cast<size_t>(engine)];
    shortest = std::min(shortest, seconds);
  }
  if (++turn_ >= kTurns) {
    decide(
        this->seconds(Engine::kUop) < this->seconds(Engine::kAten) ? Engine::kUop : Engine::kAten);
  }
}

}  // namespace tiny
