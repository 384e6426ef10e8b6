// What the recorder needs to know about an operator, derived once from its schema and tags.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <functional>
#include <string>
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
  bool masks_matter = false;       // indexing: the size of the result depends on data in masks only
  bool hidden_generator = false;   // draws random numbers but takes no generator
  bool asks_grad_mode = false;     // whether to save what only a backward pass needs
  uint8_t asks_flags = 0;          // beside the usual ones of PyTorch's, see flags.h
  bool warns_in_vain = false;      // of what a program on this device cannot change
  bool floats_matter = false;      // e.g. arange: float arguments decide the size
  bool is_listwise = false;        // the same for each place of its lists of tensors
  bool bumps_versions = false;     // of the lists it writes: autograd leaves that to the kernel
  bool takes_cpu_tensors = false;  // a copy: its source may be anywhere
  bool takes_indices = false;      // a list in which some tensors may be missing
  std::vector<bool> writes;        // per argument
  std::vector<bool> takes_generator;
  int generator = -1;                        // which argument is one
  int dropout = -1;                          // which argument decides whether anything is drawn
  const PortableKernel* portable = nullptr;  // fills tensors from the portable stream
  std::vector<int> returns;  // the argument a result is or looks at; -1 for a fresh one

  std::atomic<bool> is_gone{false};  // deregistered: there is nothing left to call
  std::atomic<uint64_t> calls{0};    // recorded, on any device
  std::atomic<uint64_t> at_once{0};
};

// Lives until the process ends or the operator is deregistered.
Operator& operator_of(const c10::OperatorHandle& handle);

// Calls `visit` on every operator that was used.
void for_each_operator(const std::function<void(Operator&)>& visit);

// From now on what is known of an operator goes when it is deregistered.
void retire_with_their_registration();

}  // namespace tiny
