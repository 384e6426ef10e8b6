// The signature of a call: the operator and all that is known of its arguments without looking at
// data. Calls with equal signatures have results with equal metadata.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <atomic>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/operator.h"
#include "core/product.h"

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

  bool operator==(const Result&) const = default;
};

// How to build one argument (or one element of a list of tensors) of a call again.
struct Token {
  enum class Kind : uint8_t {
    kConstant,  // part of the signature
    kValue,     // comes with each call: floats, captured CPU tensors, generators
    kTensor,
    kNoTensor,
    kTensorList,
    kOptionalTensorList,
  };
  Kind kind;
  uint32_t count = 0;  // of the tokens that follow and belong to it
  uint32_t place = 0;  // of a tensor among the tiny ones of the call, of a value among its values
  c10::IValue constant;
};

inline uint64_t hash_words(uint64_t hash, c10::ArrayRef<uint64_t> words) {
  for (const auto word : words) {
    const auto product = static_cast<unsigned __int128>(hash ^ word) * 0x9E3779B97F4A7C15ULL;
    hash = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  return hash;
}

struct Signature {
  uint64_t id = 0;  // never reused
  Operator* op = nullptr;
  std::vector<uint64_t> words;
  std::vector<Token> tokens;
  uint32_t value_count = 0;     // of the tokens that are values
  bool draws_hidden = false;    // from a generator that it is not given
  std::vector<Spec> specs;      // per tiny tensor, in order
  std::vector<bool> writes;     // likewise: whether the call writes it
  std::vector<Result> results;  // per fresh tensor, in order
  std::vector<uint32_t> grown;  // tensors that come empty, as out=, and get the sizes of their spec
  static constexpr int kTensor = -1;
  static constexpr int kConstant = -2;
  std::vector<int>
      list_sizes;  // per return: kTensor, kConstant, or the length of a list of tensors
  std::vector<c10::IValue> constants;  // per return: what is the same in every call
  size_t fresh_bytes = 0;
  std::unique_ptr<Product> product;  // if it is one that can be computed in two ways
  // Set when a run returned something else, e.g. after a global flag of PyTorch was changed.
  mutable std::atomic<bool> stale{false};
};

// The arguments of a call, taken apart.
struct Arguments {
  c10::SmallVector<uint64_t, 64> words;
  c10::SmallVector<const at::Tensor*, 8> tensors;  // tiny ones, in order
  c10::SmallVector<c10::IValue, 4> values;
  c10::IValue numbers;  // what its random numbers come from; the last value where that is hidden
  c10::DeviceIndex device = -1;
  bool keyed = true;    // false: an argument of a kind that has no words
  bool masked = false;  // an index is a mask
  bool draws_hidden = false;
  bool exported = false;  // someone outside looks at the memory of one of them
};

// The tokens and specs of these arguments, without results.
std::unique_ptr<Signature> make_signature(
    Operator& op, c10::ArrayRef<c10::IValue> stack, const Arguments& arguments);

// Fills in what the results of a run look like. False if they are not ordinary tensors. Attention
// on CUDA returns the seed of its dropout on the CPU: without dropout nobody reads it.
bool describe_results(Signature& signature, c10::ArrayRef<c10::IValue> returned);

// All signatures seen on a device. Guarded by its owner.
class SignatureTable {
 public:
  Signature* find(const Operator& op, const Arguments& arguments);
  // The last one that was found for this operator, or for another one.
  const Signature* recent(const Operator& op) const {
    return recent_[place(op)];
  }
  void insert(std::unique_ptr<Signature> signature);
  size_t size() const {
    return size_ + replaced_.size();
  }
  // Drops all others. No trace may refer to them.
  void keep(const std::unordered_set<const Signature*>& kept);

 private:
  size_t place(const Operator& op) const {
    return (reinterpret_cast<uintptr_t>(&op) >> 6) % recent_.size();
  }

  std::unordered_map<uint64_t, std::vector<std::unique_ptr<Signature>>> table_;
  std::vector<std::unique_ptr<Signature>> replaced_;  // a trace may still refer to them
  std::array<Signature*, 256> recent_{};              // the last one seen of some operators
  size_t size_ = 0;
};

}  // namespace tiny
