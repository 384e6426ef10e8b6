// Matrix products that two of PyTorch's libraries can compute.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/stack.h>

#include <memory>

#include "base/choice.h"

namespace tiny {

struct Signature;

// A large mm, addmm, bmm or baddbmm of float32: the operator's way is MKL, which leaves half of the
// width of a vector unused where the processor is not Intel's; oneDNN does not.
class Product {
 public:
  // Null where there is only the operator's way, or nothing to gain.
  static std::unique_ptr<Product> of(const Signature& signature);
  // Whether results may differ in their rounding from run to run, and PyTorch is to use oneDNN.
  static bool may_choose();

  // From arguments on the stack to the result there. `usual` calls the operator. True if oneDNN was
  // called in its place.
  template <typename Usual>
  bool run(c10::Stack& stack, const Usual& usual) {
    if (!may_generate()) {
      usual();
      return false;
    }
    const auto engine = choice_.next(at::get_num_threads());
    bool is_done = false;
    choice_.run(engine, [&] {
      is_done = engine == Choice::Engine::kUop && multiply(stack);
      if (!is_done) {
        usual();
      }
      return true;
    });
    if (engine == Choice::Engine::kUop && !is_done) {
      choice_.decide(choice_.threads(), Choice::Engine::kAten);
    }
    return is_done;
  }

 private:
  explicit Product(const Signature& signature) : signature_(signature) {}

  // Whether it has come again and again, and there is room for its code.
  bool may_generate();
  // False if it could not be done; the stack is as it was, then.
  bool multiply(c10::Stack& stack) const;

  const Signature& signature_;
  unsigned runs_ = 0;
  bool may_generate_ = false;
  Choice choice_;
};

}  // namespace tiny
