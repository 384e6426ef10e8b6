// Cutting off what was recorded on a device, and running it: one trace at a time.
#pragma once

#include <c10/util/FunctionRef.h>

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "plan/plan.h"
#include "run/batch.h"
#include "run/cuda_graph.h"

namespace tiny {

// Whether plans on CUDA memory become CUDA graphs; TORCH_TINY_CUDA_GRAPHS=0 says no.
inline std::atomic<bool> uses_graphs{true};

class Executor {
 public:
  Executor(c10::DeviceIndex device, Recorder& recorder);

  // What was recorded so far, if anything was. For any thread.
  std::optional<Batch> take(const char* reason);

  // Whether a thread may run what was recorded while the program goes on. On the CPU its kernels
  // would compete with the program for its cores.
  const bool may_have_thread;
  // Before that the thread would only set up libraries that the program's own has set up already.
  bool has_repeated() const {
    return has_repeated_.load();
  }

  // The rest is for who has the right to run.

  // However it ends, what the trace should have made has a value or raises why it has none.
  void execute(Batch batch);
  // Programs whose shapes never repeat must not fill the memory.
  void forget_signatures_if_many();
  // From now on the plan runs as compiled. False if it is not known any more.
  bool install(uint64_t plan, std::shared_ptr<Compiled> compiled);
  void for_each_plan(c10::function_ref<void(const Plan&)> visit) const {
    plans_.for_each(visit);
  }
  // For any thread.
  PlanCache& plans() {
    return plans_;
  }

  static constexpr uint64_t kHot = 2;  // runs of a plan after which it is worth compiling

 private:
  // What became of a batch.
  struct Outcome {
    std::exception_ptr failure;
    uint64_t relayouts = 0;
    uint64_t products = 0;  // by oneDNN
    PlanGraph::Done as_graph = PlanGraph::Done::kNothing;
  };

  Outcome run_batch(Batch& batch);
  void count(const Batch& batch, const Outcome& outcome, double seconds);
  std::string compile(const Trace& running, const Plan& plan);
  PlanGraph::Done run_as_graph(Trace& running, const Plan& plan);

  const c10::DeviceIndex device_;
  Recorder& recorder_;
  PlanCache plans_;
  std::atomic<bool> has_repeated_{false};
  int depth_ = 0;  // a kernel written in Python may use the device, and run what it recorded
};

}  // namespace tiny
