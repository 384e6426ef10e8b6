// A trace: a straight-line program over storages, in the order it was recorded.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "compiled.h"
#include "failure.h"
#include "flags.h"
#include "signature.h"
#include "storage.h"
#include "where.h"

namespace tiny {

class PlanGraph;

// A tensor argument: which storage, and where in it.
struct Use {
  uint32_t slot;
  int64_t offset;
};

struct Call {
  const Signature* signature;
  uint32_t first_use;
  uint32_t first_value;
  uint32_t first_fresh;  // slots of the fresh results are consecutive
  Where where;
};

struct Trace {
  uint64_t id = 0;
  std::vector<Call> calls;
  std::vector<Use> uses;
  std::vector<c10::IValue> values;
  std::vector<c10::intrusive_ptr<TinyStorage>> slots;
  size_t bytes = 0;  // of everything the trace keeps or will make
  Flags flags;       // that its calls were recorded under

  Trace();
  bool empty() const {
    return calls.empty();
  }
  // Whether a call under these flags can join, and takes note of them if so.
  bool accepts(const Flags& given) {
    if (empty()) {
      flags = given;
    } else if (C10_LIKELY(flags.agree(given))) {
      flags.join(given);
    } else {
      return false;
    }
    return true;
  }
  // The slot of a storage, a new one at its first use.
  uint32_t slot_of(TinyStorage& storage);
  // A slot for a fresh result; null where the operator returns no tensor.
  void add_fresh(c10::intrusive_ptr<TinyStorage> storage);
  void clear();
  void renew();  // takes the next number
  // It will not run: what has no value yet raises this.
  void fail(const std::exception_ptr& why) const noexcept;

  // Where the stream of calls starts over: the last call that begins like the first ones did.
  // The number of calls if there is no such place.
  size_t find_restart() const;
  // Moves the calls from `begin` on into a trace of their own.
  Trace split(size_t begin);
};

// Where `body` raises, the trace will not run.
template <typename Body>
void or_fail(Trace& trace, const Body& body) {
  try {
    body();
  } catch (...) {
    trace.fail(current_failure());
    trace.clear();
    throw;
  }
}

// How to run a trace: call by call, letting go of slots, or as compiled.
struct Plan : std::enable_shared_from_this<Plan> {
  uint64_t id = 0;
  std::vector<uint64_t> words;               // all that the plan was made for
  std::vector<const Signature*> signatures;  // of its calls
  std::vector<uint32_t> release_begin;
  std::vector<uint32_t> release;
  std::vector<bool> temporary;

  mutable uint64_t last_used = 0;  // a moment; guarded by the owner of the cache

  // Guarded by the lock that is held while running.
  mutable uint64_t runs = 0;
  mutable std::atomic<double> seconds{0};  // of all runs; read at any time
  mutable std::shared_ptr<Compiled> compiled;
  mutable std::shared_ptr<PlanGraph> graph;  // on CUDA memory
};

// What a device keeps; a test may want less, so that it fills sooner.
inline std::atomic<size_t> most_plans{1024};
inline std::atomic<size_t> most_signatures{16'384};

class PlanCache {
 public:
  // The plan for this trace, made now if there is none. `hit` tells which. Of too many, those go
  // that were not used for longest.
  std::shared_ptr<const Plan> find(const Trace& trace, bool& hit);
  // Null if it is not known any more.
  std::shared_ptr<const Plan> by_id(uint64_t id) const;
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (const auto& [hash, plan] : plans_) {
      visit(*plan);
    }
  }
  // Drops plans, from those not used for longest, until no more than `most` signatures are known to
  // the rest; returns these.
  std::unordered_set<const Signature*> keep_recent(size_t most);

 private:
  using Plans = std::unordered_map<uint64_t, std::shared_ptr<const Plan>>;
  std::vector<Plans::iterator> from_recent_to_old();
  void drop_old();

  Plans plans_;
  uint64_t moment_ = 0;
  std::vector<uint64_t> words_;
};

}  // namespace tiny
