// The signature of a call: the operator and all that is known of its arguments without looking at
// data. Calls with equal signatures have results with equal metadata.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "operator.h"

namespace tiny {

// Sizes, strides and type of a tensor; the offset into its storage comes with each use.
struct Spec {
  at::DimVector sizes;
  at::DimVector strides;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  bool conj = false;
  bool neg = false;

  bool operator==(const Spec&) const = default;
};

// A fresh result. `defined` is false where the operator returns no tensor in this place.
struct Result {
  Spec spec;
  int64_t offset = 0;
  size_t nbytes = 0;
  bool defined = false;
};

// How to build one argument (or one element of a list of tensors) of a call again.
struct Token {
  enum class Kind : uint8_t {
    kConstant,  // part of the signature
    kValue,     // comes with each call: floats, captured CPU tensors, generators
    kTensor,
    kNoTensor,
    kTensorList,          // `count` tokens follow
    kOptionalTensorList,  // likewise
  };
  Kind kind;
  uint32_t count = 0;
  c10::IValue constant;
};

struct Signature {
  uint64_t id = 0;  // never reused
  Operator* op = nullptr;
  std::vector<uint64_t> words;
  std::vector<Token> tokens;
  std::vector<Spec> specs;      // per tiny tensor, in order
  std::vector<Result> results;  // per fresh tensor, in order
  std::vector<int> list_sizes;  // per return: -1 for a tensor, else the length of the list
  size_t fresh_bytes = 0;
};

// The arguments of a call, taken apart.
struct Arguments {
  c10::SmallVector<uint64_t, 64> words;
  c10::SmallVector<const at::Tensor*, 8> tensors;  // tiny ones, in order
  c10::SmallVector<c10::IValue, 4> values;
  c10::DeviceIndex device = -1;
  bool keyed = true;     // false: an argument of a kind that has no words
  bool exported = false;  // someone outside looks at the memory of one of them
  uint64_t hash = 0;
};

// Raises if tensors of different devices meet in a way that PyTorch does not allow.
void take_apart(const Operator& op, c10::ArrayRef<c10::IValue> stack, Arguments& out);

// The tokens and specs of these arguments, without results.
std::unique_ptr<Signature> make_signature(
    Operator& op, c10::ArrayRef<c10::IValue> stack, const Arguments& arguments);

// Fills in the results by running the operator on meta tensors. `resized` gets the new metadata
// of `out=` arguments that the operator would resize. False if it cannot be told.
struct Resized {
  size_t tensor;  // index into Arguments::tensors
  at::DimVector sizes;
  at::DimVector strides;
};
bool infer_results(Signature& signature, const Arguments& arguments, std::vector<Resized>& resized);

// Fills in the results by looking at what a run returned.
bool remember_results(Signature& signature, c10::ArrayRef<c10::IValue> returned);

// All signatures seen on a device. Guarded by its owner.
class SignatureTable {
 public:
  Signature* find(const Operator& op, const Arguments& arguments);
  Signature* insert(std::unique_ptr<Signature> signature, uint64_t hash);
  size_t size() const {
    return size_;
  }
  void clear();

 private:
  std::unordered_map<uint64_t, std::vector<std::unique_ptr<Signature>>> table_;
  size_t size_ = 0;
};

}  // namespace tiny
