// A plan on CUDA memory as one CUDA graph: all that its steps launch, launched at once. Addresses
// and numbers are part of a graph, so it stands only for runs that have the same ones; inputs that
// come from elsewhere each time are copied to where the graph expects them.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace tiny {

class PlanGraph {
 public:
  enum class Done : uint8_t { kNothing, kCaptured, kReplayed };

  PlanGraph() = default;
  ~PlanGraph();
  PlanGraph(const PlanGraph&) = delete;
  PlanGraph& operator=(const PlanGraph&) = delete;

  // Runs the trace as a graph, which is captured when it is due. kNothing: it is to be run as ever.
  Done run(Trace& trace, const Plan& plan, c10::DeviceIndex device);

 private:
  enum class State : uint8_t { kWatching, kReady, kNever };

  // A slot that has memory before the trace runs, or at least does not come to exist in it.
  struct Input {
    uint32_t slot = 0;
    bool is_written = false;
    const void* address = nullptr;
    size_t nbytes = 0;
    bool varies = false;
    c10::Storage home;  // where the graph reads it, if its address varies
  };
  // A slot that gets its memory in the run.
  struct Output {
    uint32_t slot = 0;
    c10::Storage memory;  // where the graph writes it
    bool is_copied = false;
  };
  using Slots = std::vector<c10::intrusive_ptr<TinyStorage>>;

  void watch(const Trace& trace);
  bool fits(const Trace& trace, c10::Device host);
  bool capture(Trace& trace, const Plan& plan, c10::DeviceIndex device);
  void launch(const Slots& slots, c10::DeviceIndex device);
  void miss();
  void drop();

  State state_ = State::kWatching;
  int watched_ = 0;
  int captures_ = 0;
  int misses_ = 0;          // in a row
  bool has_moved_ = false;  // another capture would fit better
  Flags flags_;             // of PyTorch, that choose its kernels
  int64_t stream_ = 0;
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
  std::vector<bool> kept_;  // slots whose last results were still in use at the next run
  std::vector<c10::IValue> values_;
  void* graph_ = nullptr;  // PyTorch's, a Python object
  void* exec_ = nullptr;   // the driver's
};

}  // namespace tiny
