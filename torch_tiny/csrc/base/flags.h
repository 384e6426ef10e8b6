// PyTorch's switches that kernels ask when they run: a call acts by those that were set when it was
// recorded, as it would have without this device.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace tiny {

// What some operators ask for beside the usual switches; each a bit.
enum Asks : uint8_t {
  kAsksNothing = 0,
  kAsksProducts = 1,   // how exact products are, and of which library
  kAsksAttention = 2,  // which attention to take; most choose it before they are recorded
};

struct Flags {
  uint32_t denormals = 0;  // flushed: the thread's own
  uint32_t usual = 0;      // any operator may ask for these
  uint64_t products = 0;   // 0: no such call
  uint64_t attention = 0;  // likewise

  bool operator==(const Flags&) const = default;
  // Whether calls with these and those can run under the same ones.
  bool agree(const Flags& other) const {
    const auto may_meet = [](uint64_t a, uint64_t b) { return a == 0 || b == 0 || a == b; };
    return denormals == other.denormals && usual == other.usual &&
        may_meet(products, other.products) && may_meet(attention, other.attention);
  }
  // Those of both, which agree.
  void join(const Flags& other) {
    products |= other.products;
    attention |= other.attention;
  }
};

// As this thread's program has set them.
Flags flags_now(uint8_t asks);

// PyTorch's default type, as the program has set it: what numbers and integer tensors make.
c10::ScalarType default_type_now();
// To be told by the program, whatever a run has set meanwhile.
void default_type_was_set(c10::ScalarType type);

// Whether a run under these has to replace what the program has set. No other run may be underway
// meanwhile: those switches are the whole process's.
bool have_to_be_replaced(const Flags& flags);

// While it lives, kernels that this thread calls see these flags. Kernels of others' that are not
// of this device see them too, but what other threads record does not.
class WithFlags {
 public:
  explicit WithFlags(const Flags& flags);
  ~WithFlags();
  WithFlags(const WithFlags&) = delete;
  WithFlags& operator=(const WithFlags&) = delete;

 private:
  const Flags given_;
  const Flags before_;
  bool has_replaced_ = false;
};

}  // namespace tiny
