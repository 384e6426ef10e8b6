#include "base/lock_order.h"

#include <Python.h>

#include <array>
#include <cstdio>
#include <cstdlib>

namespace tiny {
namespace {

constexpr std::array kNames{"Running", "Batches", "Recorder", "Plans"};
thread_local std::array<int, kNames.size()> held{};

[[noreturn]] void end(const char* what, Rank rank) {
  std::fprintf(stderr, "torch_tiny: %s waits for %s\n", what, kNames[static_cast<size_t>(rank)]);
  std::abort();
}

}  // namespace

// A kernel written in Python may use another device: of the first alone one thread may have many.
void HeldLocks::waits_for(Rank rank) {
  const auto first = static_cast<size_t>(rank) + (rank == Rank::kRunning ? 1 : 0);
  for (auto i = first; i < held.size(); ++i) {
    if (held[i] != 0) {
      end(kNames[i], rank);
    }
  }
  if (Py_IsInitialized() && PyGILState_Check()) {
    end("who holds the GIL", rank);
  }
}

void HeldLocks::add(Rank rank) {
  ++held[static_cast<size_t>(rank)];
}

void HeldLocks::drop(Rank rank) {
  --held[static_cast<size_t>(rank)];
}

}  // namespace tiny
