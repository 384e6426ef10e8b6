// PyTorch's switches that kernels ask when they run: a call acts by those that were set when it was
// recorded, as it would have without this device.
#pragma once

#include <cstdint>

namespace tiny {

struct Flags {
  uint32_t usual = 0;    // any operator may ask for these
  uint64_t special = 0;  // only some do (Operator::asks_special_flags); 0: no such call

  bool operator==(const Flags&) const = default;
  // Whether calls with these and those can run under the same ones.
  bool agree(const Flags& other) const {
    return usual == other.usual && (special == 0 || other.special == 0 || special == other.special);
  }
};

// As this thread's program has set them.
Flags flags_now(bool with_special);

// While it lives, kernels that this thread calls see these flags. Those of PyTorch are the whole
// process's: other threads' calls on other devices see them too, but what they record does not.
class WithFlags {
 public:
  explicit WithFlags(const Flags& flags);
  ~WithFlags();
  WithFlags(const WithFlags&) = delete;
  WithFlags& operator=(const WithFlags&) = delete;

 private:
  Flags before_;
  bool has_replaced_ = false;
};

}  // namespace tiny
