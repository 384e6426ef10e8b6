#include "core/lists.h"

#include <algorithm>

#include "core/arguments.h"
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

// One place of lists of this length.
class OnePlace {
 public:
  OnePlace(const Signature& signature, const Arguments& arguments, size_t length, size_t place)
      : signature_(signature), arguments_(arguments), length_(length), place_(place) {}

  bool looks_like(const OnePlace& other) const {
    const auto& tensors = arguments_.tensors;
    for (size_t list = 0; list < tensors.size(); list += length_) {
      if (!look_alike(*tensors[list + place_], *tensors[list + other.place_])) {
        return false;
      }
    }
    return true;
  }
  c10::Stack run_with_made_up_data() const {
    Arguments here;
    here.device = arguments_.device;
    for (size_t list = 0; list < arguments_.tensors.size(); list += length_) {
      here.tensors.push_back(arguments_.tensors[list + place_]);
    }
    const auto made_up = stand_ins(here, StandIns::kOnes);
    const HostScope scope(here.device);
    c10::Stack stack;
    push_arguments(
        stack,
        signature_,
        arguments_.values.data(),
        [&](size_t i) { return made_up[i / length_]; },
        host_device(here.device),
        {place_, place_ + 1});
    call_aten(*signature_.op, here.device, stack);
    return stack;
  }

 private:
  const Signature& signature_;
  const Arguments& arguments_;
  size_t length_;
  size_t place_;
};

}  // namespace

size_t length_of(const Signature& signature, const c10::IValue* values) {
  if (!signature.op->is_listwise) {
    return 0;
  }
  size_t length = 0;
  bool is_regular = true;
  const auto has_length = [&](size_t count) {
    is_regular &= length == 0 || count == length;
    length = count;
  };
  for_each_argument(signature, [&](const Token& token, c10::ArrayRef<Token> items) {
    if (token.kind == Token::Kind::kTensorList) {
      is_regular &= std::all_of(items.begin(), items.end(), [](const Token& item) {
        return item.kind == Token::Kind::kTensor;
      });
      has_length(items.size());
    } else if (token.kind == Token::Kind::kValue) {
      if (values[token.place].isList()) {
        has_length(values[token.place].toListRef().size());
      }
    } else {
      is_regular &= token.kind == Token::Kind::kConstant && !token.constant.isList();
    }
  });
  for (const auto size : signature.list_sizes) {
    is_regular &= size == static_cast<int>(length);
  }
  return is_regular ? length : 0;
}

bool infer_lists(Signature& signature, const Arguments& arguments) {
  const auto length = length_of(signature, arguments.values.data());
  std::vector<OnePlace> different;
  std::vector<size_t> like(length);  // which of the different ones
  for (size_t place = 0; place < length; ++place) {
    const OnePlace here(signature, arguments, length, place);
    const auto found = std::find_if(different.begin(), different.end(), [&](const auto& other) {
      return here.looks_like(other);
    });
    like[place] = found - different.begin();
    if (found == different.end()) {
      different.push_back(here);
    }
  }
  if (length == 0 ||
      static_cast<double>(different.size()) > kMostOfWork * static_cast<double>(length)) {
    return false;
  }
  std::vector<c10::Stack> results;
  try {
    for (const auto& place : different) {
      results.push_back(place.run_with_made_up_data());
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
