// A trace: a straight-line program over storages, in the order it was recorded.
#pragma once

#include <atomic>
#include <exception>
#include <vector>

#include "base/failure.h"
#include "base/flags.h"
#include "base/source_line.h"
#include "core/signature.h"
#include "memory/storage.h"

namespace tiny {

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
  SourceLine where;
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

}  // namespace tiny
