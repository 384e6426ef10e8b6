#include "signature.h"

#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <bit>

#include "generator.h"
#include "host_call.h"
#include "storage.h"

namespace tiny {
namespace {

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

uint64_t head(Tag tag, uint64_t low = 0) {
  return (static_cast<uint64_t>(tag) << 56) | low;
}

uint64_t hash_words(const Operator& op, c10::ArrayRef<uint64_t> words) {
  return tiny::hash_words(reinterpret_cast<uintptr_t>(&op), words);
}

// 0 and 1 and -1 can be compiled in; any other float is an input of the plan.
uint64_t float_class(double value) {
  return value == 0 ? 1 : value == 1 ? 2 : value == -1 ? 3 : 0;
}

bool is_mask(const at::Tensor& index) {
  return index.defined() &&
      (index.scalar_type() == c10::kBool || index.scalar_type() == c10::kByte);
}

[[noreturn]] void different_devices(const Operator& op, c10::Device one, c10::Device other) {
  TORCH_CHECK(
      false,
      "Expected all tensors to be on the same device, but found at least two devices, ",
      one,
      " and ",
      other,
      "! (when checking arguments of ",
      op.name,
      ")");
}

constexpr size_t kOverlapsChecked = 8;

struct Tokens {
  Signature& signature;

  void tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      signature.tokens.push_back({Token::Kind::kNoTensor});
    } else if (tensor.device().type() == kTiny) {
      signature.tokens.push_back({Token::Kind::kTensor});
      signature.specs.push_back(
          {at::DimVector(tensor.sizes()),
           at::DimVector(tensor.strides()),
           tensor.scalar_type(),
           tensor.is_conj(),
           tensor.is_neg()});
    } else {
      signature.tokens.push_back({Token::Kind::kValue});
    }
  }

  void argument(const c10::IValue& value, bool generator) {
    if (value.isTensor()) {
      tensor(value.toTensor());
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      const auto items = value.toListRef();
      signature.tokens.push_back(
          {value.isTensorList() ? Token::Kind::kTensorList : Token::Kind::kOptionalTensorList,
           static_cast<uint32_t>(items.size())});
      for (const auto& item : items) {
        tensor(item.isTensor() ? item.toTensor() : at::Tensor());
      }
    } else if (
        value.isDouble() || value.isComplexDouble() || value.isGenerator() ||
        (value.isNone() && generator) || value.isDoubleList() ||
        (value.isList() && !value.isIntList() && !value.isBoolList())) {
      signature.tokens.push_back({Token::Kind::kValue});
    } else {
      signature.tokens.push_back({Token::Kind::kConstant, 0, value});
    }
  }
};

Result describe_result(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return {};
  }
  return {
      {at::DimVector(tensor.sizes()),
       at::DimVector(tensor.strides()),
       tensor.scalar_type(),
       tensor.is_conj(),
       tensor.is_neg()},
      tensor.storage_offset(),
      tensor.storage().nbytes(),
      true};
}

bool is_plain(const at::Tensor& tensor) {
  return !tensor.defined() ||
      (tensor.layout() == c10::kStrided && !tensor.is_quantized() && tensor.has_storage());
}

}  // namespace

void TakeApart::tensor(const at::Tensor& tensor, bool in_index_list) {
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
    different_devices(op_, {kTiny, out_.device}, device);
  }
  shape(tensor, head(Tag::kTensor));
  out_.exported |= TinyStorage::of(tensor).exports.load(std::memory_order_relaxed) != 0;
  out_.tensors.push_back(&tensor);
}

void TakeApart::foreign_tensor(const at::Tensor& tensor, c10::Device device, bool in_index_list) {
  const bool allowed = tensor.dim() == 0 || in_index_list || op_.takes_cpu_tensors;
  if (device.type() != c10::kCPU || tensor.layout() != c10::kStrided || !allowed) {
    different_devices(op_, {kTiny, out_.device < 0 ? current_device() : out_.device}, device);
  }
  shape(tensor, head(Tag::kCpuTensor));
  // Numbers that Python wrapped into a tensor belong to this call; others may change later.
  out_.values.emplace_back(
      tensor.unsafeGetTensorImpl()->is_wrapped_number() ? tensor : copy_on_host(tensor));
}

void TakeApart::shape(const at::Tensor& tensor, uint64_t tag) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  const auto sizes = impl->sizes();
  const auto strides = impl->strides();
  const uint64_t flags =
      (impl->is_conj() ? 1 : 0) | (impl->is_neg() ? 2 : 0) | (impl->is_wrapped_number() ? 4 : 0);
  out_.words.push_back(
      tag | (flags << 24) | (static_cast<uint64_t>(tensor.scalar_type()) << 8) | sizes.size());
  out_.words.append(sizes.begin(), sizes.end());
  out_.words.append(strides.begin(), strides.end());
}

void TakeApart::argument(double value) {
  out_.words.push_back(head(Tag::kDouble, float_class(value)));
  if (op_.floats_matter) {
    out_.words.push_back(std::bit_cast<uint64_t>(value));
  }
  out_.values.emplace_back(value);
}

void TakeApart::argument(int64_t value) {
  out_.words.push_back(head(Tag::kInt));
  out_.words.push_back(static_cast<uint64_t>(value));
}

void TakeApart::argument(bool value) {
  out_.words.push_back(head(Tag::kBool, value));
}

void TakeApart::argument(const at::Scalar& scalar) {
  if (scalar.isIntegral(/*includeBool=*/false) && !scalar.isSymbolic()) {
    argument(scalar.toLong());
  } else {
    argument(c10::IValue(scalar), false);
  }
}

void TakeApart::list(const c10::IValue& value) {
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

void TakeApart::scalar_list(const c10::IValue& value) {
  const auto items = value.toListRef();
  out_.words.push_back(head(Tag::kScalarList, items.size()));
  for (const auto& item : items) {
    if (item.isDouble()) {
      out_.words.push_back(head(Tag::kDouble));
    } else if (item.isInt()) {
      out_.words.push_back(head(Tag::kInt));
    } else if (item.isBool()) {
      out_.words.push_back(head(Tag::kBool));
    } else if (item.isComplexDouble()) {
      out_.words.push_back(head(Tag::kComplex));
    } else {
      out_.keyed = false;
    }
  }
  out_.values.push_back(value);
}

void TakeApart::string(const std::string& text) {
  out_.words.push_back(head(Tag::kString, text.size()));
  for (size_t i = 0; i < text.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
    out_.words.push_back(word);
  }
}

void TakeApart::device(c10::Device device) {
  if (device.type() == kTiny && out_.device < 0) {
    out_.device = with_index(device).index();
  }
  out_.words.push_back(
      head(Tag::kDevice, (static_cast<uint64_t>(device.type()) << 8) | (device.index() & 0xff)));
}

void TakeApart::argument(const c10::IValue& value, bool generator) {
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
    out_.words.push_back(head(Tag::kComplex));
    out_.values.push_back(value);
  } else if (value.isGenerator()) {
    out_.words.push_back(head(Tag::kGenerator));
    out_.values.emplace_back(host_generator(value.toGenerator()));
  } else {
    out_.keyed = false;
  }
}

// An operator may refuse to write where it also reads: then how they overlap matters as well.
void TakeApart::add_overlaps() {
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

void TakeApart::finish() {
  if (op_.writes_any && out_.tensors.size() > 1 && out_.tensors.size() <= kOverlapsChecked) {
    add_overlaps();
  }
  if (out_.device < 0) {
    out_.device = current_device();
  }
  for (const auto i : default_generators_) {
    out_.values[i] = host_generator(out_.device);
  }
  // PyTorch's default type decides what a number and an integer tensor make.
  out_.words.push_back(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()));
}

void take_apart(const Operator& op, c10::ArrayRef<c10::IValue> stack, Arguments& out) {
  TakeApart visitor(op, out);
  for (size_t i = 0; i < stack.size(); ++i) {
    visitor.argument(stack[i], op.takes_generator[i]);
  }
  visitor.finish();
}

std::unique_ptr<Signature> make_signature(
    Operator& op, c10::ArrayRef<c10::IValue> stack, const Arguments& arguments) {
  static std::atomic<uint64_t> next_id{1};
  auto signature = std::make_unique<Signature>();
  signature->id = next_id.fetch_add(1);
  signature->op = &op;
  signature->words.assign(arguments.words.begin(), arguments.words.end());
  Tokens visitor{*signature};
  for (size_t i = 0; i < stack.size(); ++i) {
    visitor.argument(stack[i], op.takes_generator[i]);
  }
  return signature;
}

bool describe_results(Signature& signature, c10::ArrayRef<c10::IValue> returned) {
  signature.results.clear();
  signature.list_sizes.clear();
  signature.sizes.assign(returned.size(), 0);
  signature.fresh_bytes = 0;
  const auto& op = *signature.op;
  for (size_t i = 0; i < returned.size(); ++i) {
    if (op.returns[i] >= 0) {
      signature.list_sizes.push_back(Signature::kTensor);
      continue;
    }
    if (returned[i].isInt()) {
      signature.list_sizes.push_back(Signature::kSize);
      signature.sizes[i] = returned[i].toInt();
      continue;
    }
    const bool is_list = returned[i].isTensorList();
    if (!is_list && !returned[i].isTensor()) {
      return false;
    }
    const auto items = is_list ? returned[i].toListRef() : returned.slice(i, 1);
    signature.list_sizes.push_back(is_list ? static_cast<int>(items.size()) : Signature::kTensor);
    for (const auto& item : items) {
      if (!is_plain(item.toTensor())) {
        return false;
      }
      signature.results.push_back(describe_result(item.toTensor()));
    }
  }
  for (const auto& result : signature.results) {
    signature.fresh_bytes += result.nbytes;
  }
  return true;
}

bool meta_agrees(const Signature& signature, const Arguments& arguments) {
  const auto metas = meta_tensors(arguments);
  Signature foretold;
  foretold.op = signature.op;
  try {
    HostScope scope(arguments.device);
    c10::Stack stack;
    push_arguments(
        stack,
        signature,
        arguments.values.data(),
        [&](size_t i) { return metas[i]; },
        c10::Device(c10::kMeta));
    signature.op->handle.callBoxed(stack);
    return describe_results(foretold, stack) && foretold.list_sizes == signature.list_sizes &&
        foretold.results == signature.results;
  } catch (...) {
    return false;
  }
}

Signature* SignatureTable::find(const Operator& op, const Arguments& arguments) {
  auto fits = [&](const Signature& signature) {
    return signature.op == &op && signature.words.size() == arguments.words.size() &&
        std::memcmp(
            signature.words.data(),
            arguments.words.data(),
            arguments.words.size() * sizeof(uint64_t)) == 0;
  };
  auto& recent = recent_[(reinterpret_cast<uintptr_t>(&op) >> 6) % recent_.size()];
  if (recent != nullptr && fits(*recent)) {
    return recent;
  }
  const auto found = table_.find(hash_words(op, arguments.words));
  if (found == table_.end()) {
    return nullptr;
  }
  for (auto& signature : found->second) {
    if (fits(*signature)) {
      return recent = signature.get();
    }
  }
  return nullptr;
}

void SignatureTable::insert(std::unique_ptr<Signature> signature) {
  recent_.fill(nullptr);
  auto& bucket = table_[hash_words(*signature->op, signature->words)];
  for (auto& other : bucket) {
    if (other->op == signature->op && other->words == signature->words) {
      std::swap(other, signature);
      replaced_.push_back(std::move(signature));
      return;
    }
  }
  ++size_;
  bucket.push_back(std::move(signature));
}

void SignatureTable::clear() {
  recent_.fill(nullptr);
  table_.clear();
  replaced_.clear();
  size_ = 0;
}

}  // namespace tiny
