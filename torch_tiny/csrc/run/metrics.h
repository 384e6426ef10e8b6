// What a queue counts.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/source_line.h"

namespace tiny {

// How often something happened at a place of the program.
class Occasions {
 public:
  using Map = std::map<std::pair<std::string, SourceLine>, uint64_t>;

  Occasions() = default;
  Occasions(Occasions&&) = default;
  Occasions& operator=(Occasions&&) = default;

  // Short traces are many: what was counted before is found without a string of its own.
  void count(std::string_view what, const SourceLine& place, uint64_t times = 1) {
    if (last_ == nullptr || last_->first.first != what || last_->first.second != place) {
      last_ = &*counts_.try_emplace({std::string(what), place}, 0).first;
    }
    last_->second += times;
  }
  const Map& counts() const {
    return counts_;
  }

 private:
  Map counts_;
  Map::value_type* last_ = nullptr;
};

struct Metrics {
  uint64_t calls = 0;
  uint64_t traces = 0;
  uint64_t plan_hits = 0;
  uint64_t plan_misses = 0;
  uint64_t metadata_misses = 0;
  uint64_t syncs = 0;
  uint64_t relayouts = 0;
  uint64_t products = 0;    // by oneDNN
  uint64_t graphs = 0;      // CUDA graphs that were captured
  uint64_t graph_runs = 0;  // traces that ran as one
  double seconds_recording = 0;
  double seconds_running = 0;
  // Why traces were run: reason and place -> how often.
  Occasions causes;
  // Why a trace was not like the one before it, at the first call that differs.
  Occasions miss_reasons;
};

}  // namespace tiny
