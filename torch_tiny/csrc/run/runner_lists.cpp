// Running operators on lists of tensors (_foreach_...) part by part: what one call leaves is still
// in the cache for the next, and temporaries of a part take the memory of those of the last one.
#include <algorithm>

#include "core/aten_call.h"
#include "core/lists.h"
#include "run/runner.h"

namespace tiny {
namespace {

constexpr size_t kPart = size_t{1} << 20;  // bytes of each list at a time
constexpr uint32_t kNone = UINT32_MAX;

// The length of all lists of a call; 0 if it takes anything else that is not the same for all.
uint32_t length_of(const Call& call, const c10::IValue* values) {
  const auto& signature = *call.signature;
  if (!signature.op->is_listwise) {
    return 0;
  }
  uint32_t length = 0;
  for (size_t i = 0; i < signature.tokens.size(); ++i) {
    const auto& token = signature.tokens[i];
    uint32_t count = length;
    if (token.kind == Token::Kind::kTensorList) {
      count = token.count;
      const auto* items = signature.tokens.data() + i + 1;
      const auto is_tensor = [](const Token& item) { return item.kind == Token::Kind::kTensor; };
      if (!std::all_of(items, items + count, is_tensor)) {
        return 0;
      }
      i += count;
    } else if (token.kind == Token::Kind::kValue) {
      count = values->isList() ? static_cast<uint32_t>(values->toListRef().size()) : length;
      ++values;
    } else if (token.kind != Token::Kind::kConstant || token.constant.isList()) {
      return 0;
    }
    if (length != 0 && count != length) {
      return 0;
    }
    length = count;
  }
  const bool returns_lists =
      std::all_of(signature.list_sizes.begin(), signature.list_sizes.end(), [&](int size) {
        return size == static_cast<int>(length);
      });
  return returns_lists ? length : 0;
}

}  // namespace

// The calls from `begin` on that can run part by part: the same tensors meet at each place.
size_t Runner::lists_end(size_t begin) {
  const auto& calls = trace_.calls;
  const auto values_of = [&](size_t i) { return trace_.values.data() + calls[i].first_value; };
  const auto length = length_of(calls[begin], values_of(begin));
  if (length < 2 || failure != nullptr) {
    return begin;
  }
  place_.assign(trace_.slots.size(), kNone);
  auto end = begin;
  for (; end < calls.size() && length_of(calls[end], values_of(end)) == length; ++end) {
    const auto& signature = *calls[end].signature;
    const auto belongs = [&](uint32_t slot, size_t place) {
      place_[slot] = place_[slot] == kNone ? static_cast<uint32_t>(place) : place_[slot];
      return place_[slot] == place;
    };
    bool all_belong = true;
    for (size_t i = 0; i < signature.specs.size() && all_belong; ++i) {
      all_belong = belongs(trace_.uses[calls[end].first_use + i].slot, i % length);
    }
    for (size_t i = 0; i < signature.results.size() && all_belong; ++i) {
      all_belong = signature.results[i].defined && belongs(calls[end].first_fresh + i, i % length);
    }
    if (!all_belong || failed_input(calls[end]) != nullptr) {
      break;
    }
  }
  return end;
}

void Runner::run_lists(size_t begin, size_t end) {
  const auto& specs = trace_.calls[begin].signature->specs;
  const auto length =
      length_of(trace_.calls[begin], trace_.values.data() + trace_.calls[begin].first_value);
  size_t bytes = 0;
  for (size_t i = 0; i < length; ++i) {
    bytes += c10::multiply_integers(specs[i].sizes) * c10::elementSize(specs[i].dtype);
  }
  const auto parts = std::clamp<size_t>(bytes / kPart, 1, length);
  for (size_t part = 0; part < parts; ++part) {
    const auto first = length * part / parts, last = length * (part + 1) / parts;
    for (auto i = begin; i < end; ++i) {
      run_one(trace_.calls[i], first, last);
    }
    for (auto k = plan_.release_begin[begin]; k < plan_.release_begin[end]; ++k) {
      const auto place = place_[plan_.release[k]];
      if (place == kNone ? part + 1 == parts : place >= first && place < last) {
        release(plan_.release[k]);
      }
    }
  }
}

void Runner::run_part(const Call& call, size_t first, size_t last) {
  const auto& signature = *call.signature;
  stack_.clear();
  size_t tensor = 0;
  const auto* value = trace_.values.data() + call.first_value;
  for (size_t i = 0; i < signature.tokens.size(); ++i) {
    const auto& token = signature.tokens[i];
    if (token.kind == Token::Kind::kTensorList) {
      c10::List<at::Tensor> list;
      list.reserve(last - first);
      for (auto k = tensor + first; k < tensor + last; ++k) {
        list.push_back(stand_in(trace_.uses[call.first_use + k], signature.specs[k]));
      }
      stack_.emplace_back(std::move(list));
      tensor += token.count;
      i += token.count;
    } else {
      stack_.push_back(
          token.kind == Token::Kind::kValue ? part_of(*value++, first, last) : token.constant);
    }
  }
  call_aten(*signature.op, device_, stack_);
  for (size_t i = 0; i < stack_.size(); ++i) {
    auto list = stack_[i].toTensorVector();
    stack_[i] = {};
    for (size_t k = 0; k < list.size(); ++k) {
      take_result(call, i * signature.list_sizes[0] + first + k, std::move(list[k]));
    }
  }
}

}  // namespace tiny
