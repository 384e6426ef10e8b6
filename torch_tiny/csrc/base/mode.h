// How the engines are used; chosen when the package is imported.
#pragma once

#include <atomic>
#include <cstdint>

namespace tiny {

enum class Mode : uint8_t {
  kAten,  // never compile
  kAuto,  // compile what is hot in the background, keep what is faster
  kUop,   // compile everything at first sight, or refuse
};

inline std::atomic<Mode> chosen_mode{Mode::kAten};
inline Mode mode() {
  return chosen_mode.load(std::memory_order_relaxed);
}

// Whether every region runs both ways, and the results are compared.
inline std::atomic<bool> validates{false};

}  // namespace tiny
