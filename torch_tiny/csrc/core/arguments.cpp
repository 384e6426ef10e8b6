#include "core/arguments.h"

namespace tiny {

c10::IValue part_of(const c10::IValue& value, Part part) {
  if (!value.isList()) {
    return value;
  }
  const auto whole = value.toList();
  c10::impl::GenericList items(whole.elementType());
  for (size_t k = part.first; k < part.last; ++k) {
    items.push_back(whole.get(k));
  }
  return items;
}

}  // namespace tiny
