// What the results of a call look like, without running it or from its first run.
#pragma once

#include <ATen/core/stack.h>

#include <memory>
#include <vector>

#include "core/signature.h"

namespace tiny {

enum class StandIns : uint8_t { kMeta, kOnes, kZeros };

// Tensors with the metadata of the arguments, that share storages as these do: without data, or on
// the host and full of one number.
std::vector<at::Tensor> stand_ins(const Arguments& arguments, StandIns what);

// What the operator returns for these in place of its tensors. Raises as its kernel does.
c10::Stack call_on(
    const std::vector<at::Tensor>& tensors, const Signature& signature, const Arguments& arguments);

// The signature of a call that has not run; null if only a run can tell.
std::unique_ptr<Signature> infer(
    Operator& op, c10::ArrayRef<c10::IValue> given, const Arguments& arguments);

// Whether the operator's meta function foretells the results of this signature.
bool meta_agrees(const Signature& signature, const Arguments& arguments);

// A call that is about to be made on these tensors.
class Observed {
 public:
  Observed(std::unique_ptr<Signature> signature, std::vector<at::Tensor> tensors);

  // From what it has returned, and done to its tensors. Null if calls like it may do otherwise, or
  // returned anything but memory of their own on such a device.
  std::unique_ptr<Signature> learn(c10::ArrayRef<c10::IValue> results, c10::DeviceType device);

 private:
  bool learn_growth();
  bool are_fresh(c10::ArrayRef<c10::IValue> results, c10::DeviceType device) const;

  std::unique_ptr<Signature> signature_;
  std::vector<at::Tensor> tensors_;
  std::vector<bool> was_empty_;
};

}  // namespace tiny
