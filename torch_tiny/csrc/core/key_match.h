// Following: a call that is expected here is compared with what is known of it as it comes, so
// that a repeated call costs a comparison and builds no key.
#pragma once

#include <array>
#include <bit>

#include "core/call_key.h"
#include "core/trace.h"

namespace tiny {

// Compares the arguments of a call, in order, with the words of a signature. What the call brings
// itself goes to `values`.
class KeyMatch {
 public:
  KeyMatch(const Signature& expected, std::vector<c10::IValue>& values)
      : word_(expected.words.data()), op_(*expected.op), values_(values) {}

  bool argument(const at::Tensor& tensor) {
    if (C10_UNLIKELY(!tensor.defined())) {
      return next(head(Tag::kNoTensor));
    }
    const auto* impl = tensor.unsafeGetTensorImpl();
    if (C10_UNLIKELY(
            impl->device().type() != kTiny || impl->layout() != c10::kStrided ||
            !impl->has_storage() || count_ == tensors_.size())) {
      return false;
    }
    if (!next(tensor_head(*impl)) || !all(impl->sizes()) || !all(impl->strides())) {
      return false;
    }
    tensors_[count_++] = &tensor;
    return TinyStorage::of(tensor).exports.load(std::memory_order_relaxed) == 0 &&
        impl->device().index() == tensors_[0]->device().index();
  }
  bool argument(const at::Scalar& scalar) {
    if (scalar.type() == c10::kLong) {
      return !scalar.isSymbolic() && argument(scalar.toLong());
    }
    return scalar.type() == c10::kDouble && !scalar.isSymbolic() && argument(scalar.toDouble());
  }
  bool argument(int64_t value) {
    return next(head(Tag::kInt)) && next(static_cast<uint64_t>(value));
  }
  bool argument(bool value) {
    return next(head(Tag::kBool, value));
  }
  bool argument(c10::ScalarType dtype) {
    return argument(static_cast<int64_t>(dtype));
  }
  bool argument(c10::IntArrayRef numbers) {
    return next(head(Tag::kIntList, numbers.size())) && all(numbers);
  }
  bool argument(std::string_view text) {
    bool same = next(head(Tag::kString, text.size()));
    for (size_t i = 0; same && i < text.size(); i += kCharactersInWord) {
      same = next(characters_word(text.substr(i)));
    }
    return same;
  }
  template <typename Value>
  bool argument(const std::optional<Value>& value) {
    return value.has_value() ? argument(*value) : next(head(Tag::kNone));
  }
  bool argument(c10::OptionalIntArrayRef numbers) {
    return numbers.has_value() ? argument(*numbers) : next(head(Tag::kNone));
  }
  bool argument(double value) {
    if (op_.floats_matter || !next(float_word(value, tensors(), op_))) {
      return false;
    }
    values_.emplace_back(value);
    return true;
  }
  bool finish() {
    for (size_t i = 1; op_.writes_any && i < count_; ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (&TinyStorage::of(*tensors_[i]) == &TinyStorage::of(*tensors_[j])) {
          const auto distance = tensors_[i]->storage_offset() - tensors_[j]->storage_offset();
          if (!next(i << 32 | j) || !next(static_cast<uint64_t>(distance))) {
            return false;
          }
        }
      }
    }
    return next(static_cast<uint64_t>(default_type_now()));
  }
  c10::ArrayRef<const at::Tensor*> tensors() const {
    return {tensors_.data(), count_};
  }

 private:
  // Words tell how many follow them, so that a difference is met before the words end.
  bool next(uint64_t word) {
    return *word_++ == word;
  }
  bool all(c10::IntArrayRef numbers) {
    for (const auto number : numbers) {
      if (!next(static_cast<uint64_t>(number))) {
        return false;
      }
    }
    return true;
  }

  const uint64_t* word_;
  const Operator& op_;
  std::vector<c10::IValue>& values_;
  std::array<const at::Tensor*, 4> tensors_{};
  size_t count_ = 0;
};

}  // namespace tiny
