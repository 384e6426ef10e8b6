#include "core/call_key.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <c10/util/overflows.h>

#include <bit>
#include <type_traits>

#include "core/aten_call.h"
#include "random/generator.h"

namespace tiny {
namespace {

bool is_mask(const at::Tensor& index) {
  return index.defined() &&
      (index.scalar_type() == c10::kBool || index.scalar_type() == c10::kByte);
}

template <typename Number>
bool can_be_converted(c10::ScalarType type, Number value) {
  switch (type) {
#define TINY_CASE(Cpp, Name)  \
  case c10::ScalarType::Name: \
    return std::is_same_v<Cpp, bool> || !c10::overflows<Cpp>(value);
    AT_FORALL_SCALAR_TYPES_WITH_COMPLEX(TINY_CASE)
    TINY_CASE(uint16_t, UInt16)
    TINY_CASE(uint32_t, UInt32)
    TINY_CASE(uint64_t, UInt64)
#undef TINY_CASE
    default:
      return true;
  }
}

uint64_t complex_word(c10::complex<double> value, c10::ScalarType type) {
  const bool is_held = can_be_converted(type, value);
  return head(
      Tag::kComplex,
      doubts(value.real(), c10::kDouble) | doubts(value.imag(), c10::kDouble) |
          (is_held ? 0 : kNotHeld));
}

// Of an integer whose value is no part of the key; negative powers of integers are refused.
uint64_t integer_word(int64_t value, c10::ScalarType type) {
  return head(
      Tag::kInt, (can_be_converted(type, value) ? 0 : kNotHeld) | (value < 0 ? kNegative : 0));
}

}  // namespace

bool can_hold(c10::ScalarType type, double value) {
  return can_be_converted(type, value);
}

void CallKeyWriter::different_devices(c10::Device one, c10::Device other) const {
  TORCH_CHECK(
      false,
      "Expected all tensors to be on the same device, but found at least two devices, ",
      one,
      " and ",
      other,
      "! (when checking arguments of ",
      op_.name,
      ")");
}

void CallKeyWriter::fill_in_generators() {
  for (const auto i : default_generators_) {
    out_.values[i] = out_.numbers = numbers_of(out_.device);
  }
}

void CallKeyWriter::draw_hidden_numbers() {
  if (has_portable_numbers(out_.device)) {
    out_.values.emplace_back(out_.numbers = numbers_of(out_.device));
  }
}

void CallKeyWriter::foreign_tensor(
    const at::Tensor& tensor, c10::Device device, bool in_index_list) {
  const bool allowed =
      !is_written_ && (tensor.dim() == 0 || in_index_list || op_.takes_cpu_tensors);
  if (device.type() != c10::kCPU || tensor.layout() != c10::kStrided || !allowed) {
    different_devices({kTiny, out_.device < 0 ? current_device() : out_.device}, device);
  }
  shape(tensor, Tag::kCpuTensor);
  // Numbers that Python wrapped into a tensor belong to this call; others may change later.
  out_.values.emplace_back(
      tensor.unsafeGetTensorImpl()->is_wrapped_number() ? tensor : copy_on_host(tensor));
}

void CallKeyWriter::argument(double value) {
  out_.words.push_back(float_word(value, out_.tensors, op_));
  if (op_.floats_matter) {
    out_.words.push_back(std::bit_cast<uint64_t>(value));
  }
  out_.values.emplace_back(value);
}

void CallKeyWriter::complex_number(const c10::IValue& value) {
  const auto number = value.toComplexDouble();
  auto word = complex_word(number, type_at(out_.tensors));
  for (size_t i = 1; op_.is_listwise && i < out_.tensors.size(); ++i) {
    word |= complex_word(number, out_.tensors[i]->scalar_type());
  }
  out_.words.push_back(word);
  if (op_.floats_matter) {
    out_.words.push_back(std::bit_cast<uint64_t>(number.real()));
    out_.words.push_back(std::bit_cast<uint64_t>(number.imag()));
  }
  out_.values.push_back(value);
}

void CallKeyWriter::list(const c10::IValue& value) {
  if (value.isIntList()) {
    const auto items = value.toIntList();
    out_.words.push_back(head(Tag::kIntList, items.size()));
    for (int64_t item : items) {
      out_.words.push_back(static_cast<uint64_t>(item));
    }
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    const auto items = value.toListRef();
    const bool optional = value.isOptionalTensorList();
    out_.words.push_back(
        head(optional ? Tag::kOptionalTensorList : Tag::kTensorList, items.size()));
    for (const auto& item : items) {
      if (item.isTensor()) {
        tensor(item.toTensor(), optional);
        out_.masked |= optional && is_mask(item.toTensor());
      } else {
        out_.words.push_back(head(Tag::kNoTensor));
      }
    }
  } else if (value.isDoubleList()) {
    out_.words.push_back(head(Tag::kDoubleList, value.toDoubleList().size()));
    out_.values.push_back(value);
  } else if (value.isBoolList()) {
    const auto items = value.toBoolList();
    out_.words.push_back(head(Tag::kBoolList, items.size()));
    for (bool item : items) {
      out_.words.push_back(item);
    }
  } else {
    scalar_list(value);
  }
}

void CallKeyWriter::scalar_list(const c10::IValue& value) {
  const auto items = value.toListRef();
  out_.words.push_back(head(Tag::kScalarList, items.size()));
  for (size_t i = 0; i < items.size(); ++i) {
    const auto& item = items[i];
    const auto type = type_at(out_.tensors, i);
    if (item.isDouble()) {
      out_.words.push_back(head(Tag::kDouble, doubts(item.toDouble(), type)));
    } else if (item.isInt()) {
      out_.words.push_back(integer_word(item.toInt(), type));
    } else if (item.isBool()) {
      out_.words.push_back(head(Tag::kBool));
    } else if (item.isComplexDouble()) {
      out_.words.push_back(complex_word(item.toComplexDouble(), type));
    } else {
      out_.keyed = false;
    }
  }
  out_.values.push_back(value);
}

void CallKeyWriter::string(std::string_view text) {
  out_.words.push_back(head(Tag::kString, text.size()));
  for (size_t i = 0; i < text.size(); i += kCharactersInWord) {
    out_.words.push_back(characters_word(text.substr(i)));
  }
}

void CallKeyWriter::device(c10::Device device) {
  if (device.type() == kTiny && out_.device < 0) {
    out_.device = with_index(device).index();
  }
  out_.words.push_back(
      head(Tag::kDevice, (static_cast<uint64_t>(device.type()) << 8) | (device.index() & 0xff)));
}

void CallKeyWriter::argument(const c10::IValue& value, bool generator) {
  if (value.isTensor()) {
    tensor(value.toTensor(), false);
  } else if (value.isInt()) {
    argument(value.toInt());
  } else if (value.isNone()) {
    out_.words.push_back(head(generator ? Tag::kGenerator : Tag::kNone));
    if (generator) {
      default_generators_.push_back(out_.values.size());
      out_.values.emplace_back();
    }
  } else if (value.isDouble()) {
    argument(value.toDouble());
  } else if (value.isBool()) {
    argument(value.toBool());
  } else if (value.isList()) {
    list(value);
  } else if (value.isDevice()) {
    device(value.toDevice());
  } else if (value.isString()) {
    string(value.toStringRef());
  } else if (value.isComplexDouble()) {
    complex_number(value);
  } else if (value.isGenerator()) {
    out_.words.push_back(head(Tag::kGenerator));
    out_.values.emplace_back(out_.numbers = numbers_of(value.toGenerator()));
  } else {
    out_.keyed = false;
  }
}

// An operator may refuse to write where it also reads: then how they overlap matters as well.
void CallKeyWriter::add_overlaps() {
  const auto& tensors = out_.tensors;
  for (size_t i = 1; i < tensors.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (tensors[i]->storage().unsafeGetStorageImpl() ==
          tensors[j]->storage().unsafeGetStorageImpl()) {
        out_.words.push_back(i << 32 | j);
        out_.words.push_back(
            static_cast<uint64_t>(tensors[i]->storage_offset() - tensors[j]->storage_offset()));
      }
    }
  }
}

void make_call_key(const Operator& op, c10::ArrayRef<c10::IValue> stack, Arguments& out) {
  CallKeyWriter visitor(op, out);
  out.draws_hidden = op.draws_hidden(stack);
  for (size_t i = 0; i < stack.size(); ++i) {
    visitor.next_is(op.writes[i]);
    visitor.argument(stack[i], op.takes_generator[i]);
  }
  visitor.finish();
}

}  // namespace tiny
