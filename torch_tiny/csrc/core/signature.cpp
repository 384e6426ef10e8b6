#include "core/signature.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/device.h"

namespace tiny {
namespace {

uint64_t hash_words(const Operator& op, c10::ArrayRef<uint64_t> words) {
  return tiny::hash_words(reinterpret_cast<uintptr_t>(&op), words);
}

Spec spec_of(const at::Tensor& tensor) {
  return {
      at::DimVector(tensor.sizes()),
      at::DimVector(tensor.strides()),
      tensor.scalar_type(),
      tensor.is_conj(),
      tensor.is_neg()};
}

class Tokens {
 public:
  explicit Tokens(Signature& signature) : signature_(signature) {}

  void argument(const c10::IValue& value, bool generator, bool written) {
    is_written_ = written;
    if (generator) {
      this->value();
    } else if (value.isTensor()) {
      tensor(value.toTensor());
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      const auto items = value.toListRef();
      signature_.tokens.push_back(
          {.kind =
               value.isTensorList() ? Token::Kind::kTensorList : Token::Kind::kOptionalTensorList,
           .count = static_cast<uint32_t>(items.size())});
      for (const auto& item : items) {
        tensor(item.isTensor() ? item.toTensor() : at::Tensor());
      }
    } else if (
        value.isDouble() || value.isComplexDouble() || value.isDoubleList() ||
        (value.isList() && !value.isIntList() && !value.isBoolList())) {
      this->value();
    } else {
      signature_.tokens.push_back({.kind = Token::Kind::kConstant, .constant = value});
    }
  }

 private:
  void tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      signature_.tokens.push_back({.kind = Token::Kind::kNoTensor});
    } else if (tensor.device().type() == kTiny) {
      const auto place = static_cast<uint32_t>(signature_.specs.size());
      signature_.tokens.push_back({.kind = Token::Kind::kTensor, .place = place});
      signature_.specs.push_back(spec_of(tensor));
      signature_.writes.push_back(is_written_);
    } else {
      value();
    }
  }
  void value() {
    signature_.tokens.push_back({.kind = Token::Kind::kValue, .place = signature_.value_count++});
  }

  Signature& signature_;
  bool is_written_ = false;
};

Result describe_result(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return {};
  }
  return {spec_of(tensor), tensor.storage_offset(), tensor.storage().nbytes(), true};
}

bool is_plain(const at::Tensor& tensor) {
  return !tensor.defined() ||
      (tensor.layout() == c10::kStrided && !tensor.is_quantized() && tensor.has_storage());
}

}  // namespace

std::unique_ptr<Signature> make_signature(
    Operator& op, c10::ArrayRef<c10::IValue> stack, const Arguments& arguments) {
  static std::atomic<uint64_t> next_id{1};
  auto signature = std::make_unique<Signature>();
  signature->id = next_id.fetch_add(1);
  signature->op = &op;
  signature->draws_hidden = arguments.draws_hidden;
  signature->words.assign(arguments.words.begin(), arguments.words.end());
  Tokens tokens(*signature);
  for (size_t i = 0; i < stack.size(); ++i) {
    tokens.argument(stack[i], op.takes_generator[i], op.writes[i]);
  }
  return signature;
}

bool describe_results(Signature& signature, c10::ArrayRef<c10::IValue> returned) {
  signature.results.clear();
  signature.list_sizes.clear();
  signature.constants.assign(returned.size(), {});
  signature.fresh_bytes = 0;
  const auto& op = *signature.op;
  // A rehearsal has all its results on the CPU, and no seed.
  const bool is_real = std::any_of(returned.begin(), returned.end(), [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && !value.toTensor().is_cpu();
  });
  for (size_t i = 0; i < returned.size(); ++i) {
    if (op.returns[i] >= 0) {
      signature.list_sizes.push_back(Signature::kTensor);
      continue;
    }
    const bool is_seed = is_real && op.dropout >= 0 && !signature.draws_hidden &&
        returned[i].isTensor() && returned[i].toTensor().defined() &&
        returned[i].toTensor().device().is_cpu();
    if (returned[i].isInt() || is_seed) {
      signature.list_sizes.push_back(Signature::kConstant);
      signature.constants[i] = returned[i];
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

Signature* SignatureTable::find(const Operator& op, const Arguments& arguments) {
  auto fits = [&](const Signature& signature) {
    return signature.op == &op && signature.words.size() == arguments.words.size() &&
        std::memcmp(
            signature.words.data(),
            arguments.words.data(),
            arguments.words.size() * sizeof(uint64_t)) == 0;
  };
  auto& recent = recent_[place(op)];
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
  signature->product = Product::of(*signature);
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

void SignatureTable::keep(const std::unordered_set<const Signature*>& kept) {
  const auto is_dropped = [&](const std::unique_ptr<Signature>& signature) {
    return kept.count(signature.get()) == 0;
  };
  recent_.fill(nullptr);
  size_ = 0;
  std::erase_if(replaced_, is_dropped);
  for (auto& [hash, bucket] : table_) {
    std::erase_if(bucket, is_dropped);
    size_ += bucket.size();
  }
  std::erase_if(table_, [](const auto& entry) { return entry.second.empty(); });
}

}  // namespace tiny
