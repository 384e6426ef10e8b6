// A trace: a straight-line program over storages, in the order it was recorded.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "compiled.h"
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

  Trace();
  bool empty() const {
    return calls.empty();
  }
  // The slot of a storage, a new one at its first use.
  uint32_t slot_of(TinyStorage& storage);
  // A slot for a fresh result; null where the operator returns no tensor.
  void add_fresh(c10::intrusive_ptr<TinyStorage> storage);
  void clear();

  // Where the stream of calls starts over: the last call that begins like the first ones did.
  // The number of calls if there is no such place.
  size_t find_restart() const;
  // Moves the calls from `begin` on into a trace of their own.
  Trace split(size_t begin);
};

// How to run a trace: call by call, letting go of slots, or as compiled.
struct Plan {
  uint64_t id = 0;
  std::vector<uint64_t> words;               // all that the plan was made for
  std::vector<const Signature*> signatures;  // of its calls
  std::vector<uint32_t> release_begin;
  std::vector<uint32_t> release;
  std::vector<bool> temporary;

  // Guarded by the lock that is held while running.
  mutable uint64_t runs = 0;
  mutable std::shared_ptr<Compiled> compiled;
  mutable std::shared_ptr<PlanGraph> graph;  // on CUDA memory
};

class PlanCache {
 public:
  // The plan for this trace, made now if there is none. `hit` tells which.
  std::shared_ptr<const Plan> find(const Trace& trace, bool& hit);
  // Null if it is not known any more.
  std::shared_ptr<const Plan> by_id(uint64_t id) const;
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (const auto& [hash, plan] : plans_) {
      visit(*plan);
    }
  }
  void clear() {
    plans_.clear();
  }

 private:
  std::unordered_map<uint64_t, std::shared_ptr<const Plan>> plans_;
  std::vector<uint64_t> words_;
};

}  // namespace tiny
