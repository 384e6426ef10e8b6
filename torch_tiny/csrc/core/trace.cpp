#include "core/trace.h"

#include <algorithm>
#include <atomic>

namespace tiny {
namespace {

constexpr size_t kRestartLength = 8;  // calls that must agree for a place to be a restart

uint64_t next_trace_id() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1);
}

}  // namespace

Trace::Trace() : id(next_trace_id()) {}

uint32_t Trace::slot_of(TinyStorage& storage) {
  if (storage.trace != id) {
    storage.trace = id;
    storage.slot = static_cast<uint32_t>(slots.size());
    bytes += storage.nbytes();
    slots.push_back(c10::intrusive_ptr<TinyStorage>::reclaim_copy(&storage));
  }
  return storage.slot;
}

void Trace::add_fresh(c10::intrusive_ptr<TinyStorage> storage) {
  if (storage) {
    storage->trace = id;
    storage->slot = static_cast<uint32_t>(slots.size());
  }
  slots.push_back(std::move(storage));
}

void Trace::renew() {
  id = next_trace_id();
}

void Trace::clear() {
  renew();
  calls.clear();
  uses.clear();
  values.clear();
  slots.clear();
  bytes = 0;
}

void Trace::fail(const std::exception_ptr& why) const noexcept {
  for (const auto& storage : slots) {
    if (storage) {
      storage->fail_if_empty(why);
    }
  }
}

size_t Trace::find_restart() const {
  const auto count = calls.size();
  for (size_t begin = count - std::min(count, kRestartLength); begin > count / 2; --begin) {
    bool same = true;
    for (size_t k = 0; same && k < kRestartLength; ++k) {
      same = calls[begin + k].signature == calls[k].signature;
    }
    if (same) {
      return begin;
    }
  }
  return count;
}

Trace Trace::split(size_t begin) {
  Trace rest;
  rest.flags = flags;
  for (size_t i = begin; i < calls.size(); ++i) {
    const auto& call = calls[i];
    const auto& signature = *call.signature;
    Call moved = call;
    moved.first_use = static_cast<uint32_t>(rest.uses.size());
    for (size_t k = 0; k < signature.specs.size(); ++k) {
      const auto use = uses[call.first_use + k];
      rest.uses.push_back({rest.slot_of(*slots[use.slot]), use.offset});
    }
    const auto values_end = i + 1 < calls.size() ? calls[i + 1].first_value : values.size();
    moved.first_value = static_cast<uint32_t>(rest.values.size());
    for (size_t k = call.first_value; k < values_end; ++k) {
      rest.values.push_back(values[k]);
    }
    moved.first_fresh = static_cast<uint32_t>(rest.slots.size());
    for (size_t k = 0; k < signature.results.size(); ++k) {
      rest.add_fresh(slots[call.first_fresh + k]);
    }
    rest.bytes += signature.fresh_bytes;
    rest.calls.push_back(moved);
  }
  if (begin < calls.size()) {
    uses.resize(calls[begin].first_use);
    values.resize(calls[begin].first_value);
    calls.resize(begin);
    // Slots are numbered in the order of first use, so those of the rest are the last ones.
    uint32_t kept = 0;
    for (const auto& use : uses) {
      kept = std::max(kept, use.slot + 1);
    }
    for (const auto& call : calls) {
      kept =
          std::max(kept, call.first_fresh + static_cast<uint32_t>(call.signature->results.size()));
    }
    slots.resize(kept);
  }
  return rest;
}

}  // namespace tiny
