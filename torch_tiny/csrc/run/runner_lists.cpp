// Running operators on lists of tensors (_foreach_...) part by part: what one call leaves is still
// in the cache for the next, and temporaries of a part take the memory of those of the last one.
#include <algorithm>

#include "core/lists.h"
#include "run/runner.h"

namespace tiny {
namespace {

constexpr size_t kPart = size_t{1} << 20;  // bytes of each list at a time
constexpr uint32_t kNone = UINT32_MAX;

}  // namespace

// The calls from `begin` on that can run part by part: the same tensors meet at each place.
size_t Runner::lists_end(size_t begin) {
  const auto& calls = trace_.calls;
  const auto values_of = [&](size_t i) { return trace_.values.data() + calls[i].first_value; };
  const auto length = length_of(*calls[begin].signature, values_of(begin));
  if (length < 2 || failure != nullptr) {
    return begin;
  }
  place_.assign(trace_.slots.size(), kNone);
  auto end = begin;
  for (; end < calls.size() && length_of(*calls[end].signature, values_of(end)) == length; ++end) {
    const auto& signature = *calls[end].signature;
    const auto belongs = [&](uint32_t slot, size_t place) {
      place_[slot] = place_[slot] == kNone ? static_cast<uint32_t>(place) : place_[slot];
      return place_[slot] == place;
    };
    bool all_belong = true;
    for (size_t i = 0; i < signature.specs.size() && all_belong; ++i) {
      all_belong = belongs(trace_.uses[calls[end].first_use + i].slot, i % length);
    }
    for (size_t i = 0; i < signature.results.size() && all_belong; ++i) {
      all_belong = signature.results[i].defined && belongs(calls[end].first_fresh + i, i % length);
    }
    if (!all_belong || failed_input(calls[end]) != nullptr) {
      break;
    }
  }
  return end;
}

void Runner::run_lists(size_t begin, size_t end) {
  const auto& call = trace_.calls[begin];
  const auto& specs = call.signature->specs;
  const auto length = length_of(*call.signature, trace_.values.data() + call.first_value);
  size_t bytes = 0;
  for (size_t i = 0; i < length; ++i) {
    bytes += c10::multiply_integers(specs[i].sizes) * c10::elementSize(specs[i].dtype);
  }
  const auto parts = std::clamp<size_t>(bytes / kPart, 1, length);
  for (size_t part = 0; part < parts; ++part) {
    const auto first = length * part / parts, last = length * (part + 1) / parts;
    for (auto i = begin; i < end; ++i) {
      run_one(trace_.calls[i], {first, last});
    }
    for (auto k = plan_.release_begin[begin]; k < plan_.release_begin[end]; ++k) {
      const auto place = place_[plan_.release[k]];
      if (place == kNone ? part + 1 == parts : place >= first && place < last) {
        release(plan_.release[k]);
      }
    }
  }
}

}  // namespace tiny
