// Walking over the arguments of a call, and building them again.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <cstdint>

#include "base/device.h"
#include "core/signature.h"

namespace tiny {

// Visits the arguments in order: the token of each, and those of its items if it is a list of
// tensors.
template <typename Visit>
void for_each_argument(const Signature& signature, const Visit& visit) {
  const auto& tokens = signature.tokens;
  for (size_t i = 0; i < tokens.size(); i += 1 + tokens[i].count) {
    visit(tokens[i], c10::ArrayRef<Token>(tokens.data() + i + 1, tokens[i].count));
  }
}

// From one place in the lists of a call to another.
struct Part {
  size_t first = 0;
  size_t last = SIZE_MAX;

  bool is_whole() const {
    return last == SIZE_MAX;
  }
};

// These items of a list; anything else is the same for all.
c10::IValue part_of(const c10::IValue& value, Part part);

// Appends the arguments of a call to `stack`: `tensor(i)` gives the i-th tiny tensor's stand-in,
// `values` is where the call's own values begin, `device` stands in for the tiny device.
template <typename TensorOf>
void push_arguments(
    c10::Stack& stack,
    const Signature& signature,
    const c10::IValue* values,
    const TensorOf& tensor,
    c10::Device device,
    Part part = {}) {
  const auto push_list = [&](auto list, c10::ArrayRef<Token> items) {
    const auto chosen = part.is_whole() ? items : items.slice(part.first, part.last - part.first);
    list.reserve(chosen.size());
    for (const auto& item : chosen) {
      if (item.kind == Token::Kind::kTensor) {
        list.push_back(tensor(item.place));
      } else if (item.kind == Token::Kind::kValue) {
        list.push_back(values[item.place].toTensor());
      } else {
        list.push_back(typename decltype(list)::value_type());
      }
    }
    stack.emplace_back(std::move(list));
  };
  for_each_argument(signature, [&](const Token& token, c10::ArrayRef<Token> items) {
    switch (token.kind) {
      case Token::Kind::kTensor:
        stack.emplace_back(tensor(token.place));
        break;
      case Token::Kind::kValue:
        stack.push_back(part.is_whole() ? values[token.place] : part_of(values[token.place], part));
        break;
      case Token::Kind::kConstant:
        if (C10_UNLIKELY(token.constant.isDevice())) {
          const auto given = token.constant.toDevice();
          stack.emplace_back(given.type() == kTiny ? device : given);
        } else {
          stack.emplace_back(token.constant);
        }
        break;
      case Token::Kind::kNoTensor:
        stack.emplace_back(at::Tensor());
        break;
      case Token::Kind::kTensorList:
        push_list(c10::List<at::Tensor>(), items);
        break;
      case Token::Kind::kOptionalTensorList:
        push_list(c10::List<std::optional<at::Tensor>>(), items);
        break;
    }
  });
}

// The same with other tensors in place of those in it.
template <typename Map>
c10::IValue map_tensors(const c10::IValue& value, const Map& map) {
  if (value.isTensor()) {
    return map(value.toTensor());
  }
  const auto items = [&](auto list) {
    for (const auto& item : value.toListRef()) {
      using Item = typename decltype(list)::value_type;
      list.push_back(item.isTensor() ? Item(map(item.toTensor())) : Item());
    }
    return list;
  };
  if (value.isTensorList()) {
    return items(c10::List<at::Tensor>());
  }
  if (value.isOptionalTensorList()) {
    return items(c10::List<std::optional<at::Tensor>>());
  }
  return value;
}

}  // namespace tiny
