// Taking the arguments of a call apart into the words of its signature. Inline where it is hot:
// this is a good part of what recording a call costs.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "base/flags.h"
#include "core/signature.h"
#include "memory/storage.h"

namespace tiny {

// The first word of an argument tells its kind.
enum class Tag : uint8_t {
  kNone,
  kTensor,
  kCpuTensor,
  kNoTensor,
  kInt,
  kDouble,
  kBool,
  kComplex,
  kString,
  kDevice,
  kGenerator,
  kIntList,
  kDoubleList,
  kBoolList,
  kScalarList,
  kTensorList,
  kOptionalTensorList,
};

inline uint64_t head(Tag tag, uint64_t low = 0) {
  return (static_cast<uint64_t>(tag) << 56) | low;
}

// A few floats can be compiled in, such as the order of a norm; any other is an input of the plan.
// Their bits are compared: -0.0 is not 0.0.
inline uint64_t float_class(double value) {
  constexpr auto kInfinity = std::numeric_limits<double>::infinity();
  constexpr auto kBits = [](double known) { return std::bit_cast<uint64_t>(known); };
  constexpr std::array kKnown{
      kBits(0.0), kBits(1.0), kBits(-1.0), kBits(2.0), kBits(kInfinity), kBits(-kInfinity)};
  const auto* found = std::find(kKnown.begin(), kKnown.end(), std::bit_cast<uint64_t>(value));
  return found == kKnown.end() ? 0 : static_cast<uint64_t>(found - kKnown.begin()) + 1;
}

// Whether converting to this type is allowed: a kernel that fills a tensor raises if not.
bool can_hold(c10::ScalarType type, double value);

// Why a kernel may refuse a number: a tensor's type cannot hold it, or float32 cannot, which it may
// be computed in; it is NaN, or negative. Each makes a call of its own kind, which runs and may
// raise.
enum : uint64_t { kNotHeld = 1, kNotHeldByFloat = 2, kNotANumber = 4, kNegative = 8 };

inline uint64_t doubts(double value, c10::ScalarType type) {
  if (C10_LIKELY(value >= 0 && value <= std::numeric_limits<int8_t>::max())) {
    return 0;
  }
  return (can_hold(type, value) ? 0 : kNotHeld) |
      (can_hold(c10::kFloat, value) ? 0 : kNotHeldByFloat) | (value == value ? 0 : kNotANumber);
}

// The type of the tensor at this place, or of the last one.
inline c10::ScalarType type_at(c10::ArrayRef<const at::Tensor*> tensors, size_t place = 0) {
  return tensors.empty() ? c10::kDouble
                         : tensors[std::min(place, tensors.size() - 1)]->scalar_type();
}

// The word of a float that comes with a call after these tensors: the first one's type counts, but
// of lists each has a call of its own.
inline uint64_t float_word(
    double value, c10::ArrayRef<const at::Tensor*> tensors, const Operator& op) {
  auto why = doubts(value, type_at(tensors));
  for (size_t i = 1; op.is_listwise && i < tensors.size(); ++i) {
    why |= doubts(value, tensors[i]->scalar_type());
  }
  why |= op.checks_signs && std::signbit(value) ? kNegative : 0;
  return head(Tag::kDouble, float_class(value) | why << 8);
}

// Strings are compared eight characters at a time.
inline constexpr size_t kCharactersInWord = 8;
inline uint64_t characters_word(std::string_view rest) {
  uint64_t word = 0;
  std::memcpy(&word, rest.data(), std::min(kCharactersInWord, rest.size()));
  return word;
}

// The first word of a tiny tensor's; its sizes and strides follow.
inline uint64_t tensor_head(const c10::TensorImpl& impl, Tag tag = Tag::kTensor) {
  const uint64_t flags =
      (impl.is_conj() ? 1 : 0) | (impl.is_neg() ? 2 : 0) | (impl.is_wrapped_number() ? 4 : 0);
  return head(tag) | (flags << 24) |
      (static_cast<uint64_t>(c10::typeMetaToScalarType(impl.dtype())) << 8) |
      static_cast<uint64_t>(impl.dim());
}

// Takes arguments apart one by one; `finish` comes last. Raises if tensors of different devices
// meet in a way that PyTorch does not allow.
class CallKeyWriter {
 public:
  CallKeyWriter(const Operator& op, Arguments& out) : op_(op), out_(out) {
    out.draws_hidden = op.hidden_generator;
  }

  // Comes before an argument that the operator writes, or may write.
  void next_is(bool written) {
    is_written_ = written;
  }
  void argument(const c10::IValue& value, bool generator);
  void argument(const at::Tensor& tensor) {
    this->tensor(tensor, false);
  }
  void argument(const at::Scalar& scalar);
  void argument(bool value);
  void argument(int64_t value);
  void argument(double value);
  template <typename Value>
  void argument(const Value& value) {
    argument(c10::IValue(value), false);
  }
  void finish();

 private:
  void tensor(const at::Tensor& tensor, bool in_index_list);
  void foreign_tensor(const at::Tensor& tensor, c10::Device device, bool in_index_list);
  void shape(const at::Tensor& tensor, Tag tag);
  void list(const c10::IValue& value);
  void scalar_list(const c10::IValue& value);
  void complex_number(const c10::IValue& value);
  void string(std::string_view text);
  void device(c10::Device device);
  void add_overlaps();
  void fill_in_generators();
  void draw_hidden_numbers();
  [[noreturn]] void different_devices(c10::Device one, c10::Device other) const;

  static constexpr size_t kOverlapsChecked = 8;

  const Operator& op_;
  Arguments& out_;
  bool is_written_ = false;
  c10::SmallVector<size_t, 1> default_generators_;  // indices into the values
};

void make_call_key(const Operator& op, c10::ArrayRef<c10::IValue> stack, Arguments& out);

inline void CallKeyWriter::tensor(const at::Tensor& tensor, bool in_index_list) {
  if (C10_UNLIKELY(!tensor.defined())) {
    out_.words.push_back(head(Tag::kNoTensor));
    return;
  }
  const auto* impl = tensor.unsafeGetTensorImpl();
  const auto device = impl->device();
  if (C10_UNLIKELY(device.type() != kTiny)) {
    return foreign_tensor(tensor, device, in_index_list);
  }
  if (C10_UNLIKELY(impl->layout() != c10::kStrided || !impl->has_storage())) {
    out_.keyed = false;
    return;
  }
  if (out_.device < 0) {
    out_.device = device.index();
  } else if (C10_UNLIKELY(out_.device != device.index())) {
    different_devices({kTiny, out_.device}, device);
  }
  shape(tensor, Tag::kTensor);
  out_.exported |= TinyStorage::of(tensor).exports.load(std::memory_order_relaxed) != 0;
  out_.tensors.push_back(&tensor);
}

inline void CallKeyWriter::shape(const at::Tensor& tensor, Tag tag) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  out_.words.push_back(tensor_head(*tensor.unsafeGetTensorImpl(), tag));
  out_.words.append(sizes.begin(), sizes.end());
  out_.words.append(strides.begin(), strides.end());
}

inline void CallKeyWriter::argument(int64_t value) {
  out_.words.push_back(head(Tag::kInt));
  out_.words.push_back(static_cast<uint64_t>(value));
}

inline void CallKeyWriter::argument(bool value) {
  out_.words.push_back(head(Tag::kBool, value));
}

inline void CallKeyWriter::argument(const at::Scalar& scalar) {
  if (scalar.type() == c10::kLong && !scalar.isSymbolic()) {
    argument(scalar.toLong());
  } else {
    argument(c10::IValue(scalar), false);
  }
}

inline void CallKeyWriter::finish() {
  if (op_.writes_any && out_.tensors.size() > 1 && out_.tensors.size() <= kOverlapsChecked) {
    add_overlaps();
  }
  if (out_.device < 0) {
    out_.device = current_device();
  }
  if (C10_UNLIKELY(!default_generators_.empty())) {
    fill_in_generators();
  }
  if (C10_UNLIKELY(out_.draws_hidden)) {
    draw_hidden_numbers();
  }
  out_.words.push_back(static_cast<uint64_t>(default_type_now()));
}

}  // namespace tiny
