#include "core/lists.h"

#include <algorithm>

#include "core/aten_call.h"
#include "core/infer.h"

namespace tiny {
namespace {

constexpr double kMostOfWork = 0.25;  // that may be done to foretell a call

bool look_alike(const at::Tensor& one, const at::Tensor& other) {
  return one.scalar_type() == other.scalar_type() && one.sizes() == other.sizes() &&
      one.strides() == other.strides() && one.storage().nbytes() == other.storage().nbytes() &&
      one.is_conj() == other.is_conj() && one.is_neg() == other.is_neg();
}

// The tensors of a call at one place of its lists.
class Places {
 public:
  explicit Places(c10::ArrayRef<c10::IValue> given) {
    for (const auto& value : given) {
      is_regular_ &= !value.isTensor() && !value.isOptionalTensorList();
      if (value.isTensorList()) {
        lists_.push_back(value.toListRef());
        is_regular_ &= lists_.back().size() == lists_.front().size();
      }
    }
  }

  // 0 where the call takes more than lists of one length and numbers.
  size_t count() const {
    return is_regular_ && !lists_.empty() ? lists_.front().size() : 0;
  }
  bool look_alike(size_t place, size_t other) const {
    return std::all_of(lists_.begin(), lists_.end(), [&](const auto& list) {
      return tiny::look_alike(list[place].toTensor(), list[other].toTensor());
    });
  }
  Arguments at(size_t place, c10::DeviceIndex device) const {
    Arguments arguments;
    arguments.device = device;
    for (const auto& list : lists_) {
      arguments.tensors.push_back(&list[place].toTensor());
    }
    return arguments;
  }

 private:
  std::vector<c10::ArrayRef<c10::IValue>> lists_;
  bool is_regular_ = true;
};

c10::Stack tried(
    const Operator& op,
    c10::ArrayRef<c10::IValue> given,
    const Arguments& arguments,
    size_t place) {
  const auto made_up = stand_ins(arguments, StandIns::kOnes);
  auto next = made_up.begin();
  c10::Stack stack;
  for (const auto& value : given) {
    if (value.isTensorList()) {
      stack.emplace_back(c10::List<at::Tensor>({*next++}));
    } else {
      stack.push_back(part_of(value, place, place + 1));
    }
  }
  HostScope scope(arguments.device);
  call_aten(op, arguments.device, stack);
  return stack;
}

}  // namespace

c10::IValue part_of(const c10::IValue& value, size_t begin, size_t end) {
  if (!value.isList()) {
    return value;
  }
  const auto whole = value.toList();
  c10::impl::GenericList part(whole.elementType());
  for (size_t k = begin; k < end; ++k) {
    part.push_back(whole.get(k));
  }
  return part;
}

bool infer_lists(
    Signature& signature, c10::ArrayRef<c10::IValue> given, const Arguments& arguments) {
  const Places places(given);
  std::vector<size_t> different;
  std::vector<size_t> like(places.count());  // which of the different ones
  for (size_t k = 0; k < like.size(); ++k) {
    const auto found = std::find_if(different.begin(), different.end(), [&](size_t other) {
      return places.look_alike(k, other);
    });
    like[k] = found - different.begin();
    if (found == different.end()) {
      different.push_back(k);
    }
  }
  if (like.empty() ||
      static_cast<double>(different.size()) > kMostOfWork * static_cast<double>(like.size())) {
    return false;
  }
  std::vector<c10::Stack> results;
  try {
    for (const auto k : different) {
      results.push_back(tried(*signature.op, given, places.at(k, arguments.device), k));
    }
  } catch (...) {
    return false;  // the call itself will raise in its own words
  }
  c10::Stack returned;
  for (size_t i = 0; i < signature.op->returns.size(); ++i) {
    c10::List<at::Tensor> list;
    for (const auto which : like) {
      const auto one = results[which][i].toTensorVector();
      TORCH_INTERNAL_ASSERT(one.size() == 1);
      list.push_back(one[0]);
    }
    returned.emplace_back(std::move(list));
  }
  return describe_results(signature, returned);
}

}  // namespace tiny
