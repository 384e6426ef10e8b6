#include "base/troubles.h"

#include <Python.h>

#include <atomic>
#include <map>
#include <mutex>
#include <tuple>

namespace tiny {
namespace {

struct Notes {
  std::mutex mutex;
  std::map<std::tuple<std::string, std::string, SourceLine>, uint64_t> counts;
};

Notes& notes() {
  static auto* all = new Notes;  // threads may note something until the very end
  return *all;
}

std::function<bool()>& teller() {
  static auto* tell = new std::function<bool()>;
  return *tell;
}

// -1 raises in the main thread what the teller raised.
int tell(void* /*unused*/) {
  return teller() && !teller()() ? -1 : 0;
}

}  // namespace

void note_trouble(const char* kind, std::string reason, const SourceLine& place) {
  bool is_new = false;
  {
    std::lock_guard lock(notes().mutex);
    is_new = notes().counts[{kind, std::move(reason), place}]++ == 0;
  }
  if (is_new) {
    tell_soon();
  }
}

std::vector<Trouble> troubles() {
  std::lock_guard lock(notes().mutex);
  std::vector<Trouble> found;
  for (const auto& [what, count] : notes().counts) {
    const auto& [kind, reason, place] = what;
    found.push_back({kind, reason, place, count});
  }
  return found;
}

void set_teller(std::function<bool()> tell) {
  teller() = std::move(tell);
}

void tell_soon() {
  if (Py_IsInitialized()) {
    Py_AddPendingCall(&tell, nullptr);  // where too many wait, one of those tells it
  }
}

}  // namespace tiny
