// What cost speed though nothing is wrong: counted with the user's line, and told once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/source_line.h"

namespace tiny {

struct Trouble {
  std::string kind;
  std::string reason;
  SourceLine place;
  uint64_t count = 0;
};

// Called by any thread, with or without the GIL.
void note_trouble(const char* kind, std::string reason, const SourceLine& place);
std::vector<Trouble> troubles();

// What Python's main thread does between two of its steps, once there is something to tell.
void set_teller(std::function<bool()> tell);
// Has it done so soon.
void tell_soon();

}  // namespace tiny
