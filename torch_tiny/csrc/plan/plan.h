// Plans: how to run the traces that are alike, and what was learned of running them.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/lock_order.h"
#include "core/trace.h"
#include "plan/compiled.h"

namespace tiny {

class PlanGraph;

using Moment = std::chrono::steady_clock::time_point;

// How to run a trace: call by call, letting go of slots, or as compiled.
struct Plan : std::enable_shared_from_this<Plan> {
  uint64_t id = 0;
  std::vector<uint64_t> words;               // all that the plan was made for
  std::vector<const Signature*> signatures;  // of its calls
  std::vector<uint32_t> release_begin;
  std::vector<uint32_t> release;
  std::vector<bool> temporary;

  mutable Moment last_used;  // guarded by the cache's lock

  // Guarded by the lock that is held while running.
  mutable uint64_t runs = 0;
  mutable std::atomic<double> seconds{0};  // of all runs; read at any time
  mutable std::shared_ptr<Compiled> compiled;
  mutable std::shared_ptr<PlanGraph> graph;  // on CUDA memory
};

// What a device keeps; a test may want less, so that it fills sooner.
inline std::atomic<size_t> most_plans{1024};
inline std::atomic<size_t> most_signatures{16'384};

// Of a device; for any thread.
class PlanCache {
 public:
  // The plan for this trace, made now if there is none. `hit` tells which. Of too many, those go
  // that were not used for longest.
  std::shared_ptr<const Plan> find(const Trace& trace, bool& hit);
  // Null if it is not known any more.
  std::shared_ptr<const Plan> by_id(uint64_t id) const;
  template <typename Visit>
  void for_each(const Visit& visit) const {
    std::lock_guard lock(mutex_);
    for (const auto& [hash, plan] : plans_) {
      visit(*plan);
    }
  }
  // Drops plans, from those not used for longest, until no more than `most` signatures are known to
  // the rest; returns these.
  std::unordered_set<const Signature*> keep_recent(size_t most);
  // When its plans were used last.
  void add_moments(std::vector<Moment>& moments) const;
  // Drops the plans that were not used since.
  void drop_older(Moment moment);

 private:
  using Plans = std::unordered_map<uint64_t, std::shared_ptr<const Plan>>;
  std::vector<Plans::iterator> from_recent_to_old();
  void drop_old();

  mutable Ordered<Rank::kPlans> mutex_;
  Plans plans_;
  std::vector<uint64_t> words_;
};

}  // namespace tiny
