// What the recorder needs to know about an operator, derived once from its schema and tags, and
// from what was told of its name (torch_tiny/operators.py).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

namespace tiny {

struct PortableKernel;

struct Operator {
  enum class Kind : uint8_t {
    kRecord,  // metadata of the results follows from metadata of the arguments
    kEager,   // results depend on data, or are not tensors
    kView,    // results look at an argument's storage
  };

  explicit Operator(const c10::OperatorHandle& handle);

  // Whether a call with these arguments draws from a generator that it is not given.
  bool draws_hidden(c10::ArrayRef<c10::IValue> arguments) const {
    return hidden_generator && (dropout < 0 || arguments[dropout].toDouble() != 0);
  }

  c10::OperatorHandle handle;
  std::string name;
  std::atomic<Kind> kind{Kind::kRecord};
  bool builtin = false;  // PyTorch's own: its tags can be trusted
  bool writes_any = false;
  bool masks_matter = false;      // indexing: the size of the result depends on data in masks only
  bool hidden_generator = false;  // draws random numbers but takes no generator
  uint8_t asks_flags = 0;         // beside the usual ones of PyTorch's, see flags.h
  bool floats_matter = false;     // e.g. arange: float arguments decide the size
  bool bumps_versions = false;    // of the lists it writes: autograd leaves that to the kernel
  bool takes_indices = false;     // a list in which some tensors may be missing
  std::vector<bool> writes;       // per argument
  std::vector<bool> takes_generator;
  int generator = -1;                        // which argument is one
  int dropout = -1;                          // which argument decides whether anything is drawn
  const PortableKernel* portable = nullptr;  // fills tensors from the portable stream
  std::vector<int> returns;  // the argument a result is or looks at; -1 for a fresh one

  // Told of its name.
  bool is_listwise = false;
  bool takes_cpu_tensors = false;
  bool chooses_by_device = false;
  bool is_sized_by_data = false;
  bool is_sized_by_shapes = false;
  bool needs_real_data = false;
  bool asks_grad_mode = false;
  bool warns_in_vain = false;
  bool checks_signs = false;
  bool asks_products = false;
  bool asks_attention = false;
  bool waits_for_device = false;
  bool multiplies = false;
  bool adds_product = false;

  std::atomic<bool> is_gone{false};  // deregistered: there is nothing left to call
  std::atomic<uint64_t> calls{0};    // recorded, on any device
  std::atomic<uint64_t> at_once{0};
};

// What is true of operators of these names; `*` stands for anything at an end of one. Before the
// first operator is described.
void set_traits(const std::unordered_map<std::string, std::vector<std::string>>& traits);

// Lives until the process ends or the operator is deregistered.
Operator& operator_of(const c10::OperatorHandle& handle);

// Calls `visit` on every operator that was used.
void for_each_operator(const std::function<void(Operator&)>& visit);

// From now on what is known of an operator goes when it is deregistered.
void retire_with_their_registration();

}  // namespace tiny
