#include "core/operator.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "base/flags.h"
#include "random/portable_random.h"

namespace tiny {
namespace {

// Parts of the names of operators behind which are libraries of matrix products and networks.
constexpr std::array<std::string_view, 21> kOfLibraries = {
    "mm",       "mv",      "dot",  "matmul", "einsum",   "linear",       "attention",
    "conv",     "lstm",    "gru",  "rnn",    "cdist",    "linalg",       "solve",
    "cholesky", "inverse", "pool", "_norm",  "ctc_loss", "grid_sampler", "transformer"};

// Networks that choose an attention inside of their kernel.
constexpr std::array<std::string_view, 2> kWithAttention = {
    "aten::_native_multi_head_attention", "aten::_transformer_encoder_layer_fwd"};

template <typename Names>
bool has_part(const Names& parts, std::string_view name) {
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) {
    return name.find(part) != std::string_view::npos;
  });
}

struct Table {
  std::mutex mutex;
  std::unordered_map<const void*, std::unique_ptr<Operator>> operators;
  std::vector<std::unique_ptr<Operator>> retired;
  std::atomic<uint64_t> epoch{1};
};

Table& table() {
  static auto* instance = new Table;
  return *instance;
}

// The dispatcher keeps one name object per operator, so its address identifies the operator.
const void* identity(const c10::OperatorHandle& handle) {
  return &handle.operator_name();
}

bool is_builtin(const std::string& name) {
  return name.rfind("aten::", 0) == 0 || name.rfind("prims::", 0) == 0;
}

bool is_tensor_like(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return true;
    case c10::TypeKind::OptionalType:
    case c10::TypeKind::ListType:
      return is_tensor_like(type->containedType(0));
    default:
      return false;
  }
}

bool is_size(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::IntType || type->kind() == c10::TypeKind::SymIntType;
}

bool is_generator(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::GeneratorType ||
      (type->kind() == c10::TypeKind::OptionalType && is_generator(type->containedType(0)));
}

int aliased_argument(const c10::FunctionSchema& schema, const c10::AliasInfo& alias) {
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* of = schema.arguments()[i].alias_info();
    if (of != nullptr && !of->beforeSets().empty() && of->beforeSets() == alias.beforeSets()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

int dropout_argument(const c10::FunctionSchema& schema) {
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    if ((argument.name() == "dropout_p" || argument.name() == "dropout") &&
        argument.type()->kind() == c10::TypeKind::FloatType) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

// A deregistered operator must not be called any more, nor its description be found again. The
// dispatcher holds its lock, so nothing can run here: interop.py has had it run before.
struct Retire final : c10::OpRegistrationListener {
  void onOperatorRegistered(const c10::OperatorHandle& /*op*/) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    std::lock_guard lock(table().mutex);
    auto found = table().operators.find(identity(op));
    if (found != table().operators.end()) {
      found->second->is_gone = true;
      table().retired.push_back(std::move(found->second));
      table().operators.erase(found);
      table().epoch.fetch_add(1);
    }
  }
};

}  // namespace

Operator::Operator(const c10::OperatorHandle& op)
    : handle(op), name(c10::toString(op.operator_name())) {
  const auto& schema = op.schema();
  bool tensor_inputs = false;
  for (const auto& argument : schema.arguments()) {
    const bool write = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    writes.push_back(write);
    writes_any |= write;
    tensor_inputs |= is_tensor_like(argument.type()) && !write;
    takes_indices |= argument.type()->isSubtypeOf(*c10::ListType::ofOptionalTensors());
    takes_generator.push_back(is_generator(argument.type()));
    generator = takes_generator.back() ? static_cast<int>(writes.size()) - 1 : generator;
  }
  const auto& results = schema.returns();
  const bool some_tensor = std::any_of(results.begin(), results.end(), [](const auto& result) {
    return is_tensor_like(result.type());
  });
  for (const auto& result : results) {
    const auto* alias = result.alias_info();
    returns.push_back(alias == nullptr ? -1 : aliased_argument(schema, *alias));
    if (!is_tensor_like(result.type())) {
      // Sizes returned beside tensors follow from the arguments' sizes, as the tensors' do.
      kind = some_tensor && is_size(result.type()) ? kind.load() : Kind::kEager;
    } else if (alias != nullptr && !alias->isWrite() && kind == Kind::kRecord) {
      kind = Kind::kView;
    }
  }
  masks_matter = op.hasTag(at::Tag::dynamic_output_shape) && takes_indices;
  // Least squares come here with the one driver whose results are always as large. torch 2.11 does
  // not say it of _unique, which the second derivative of trace calls.
  const bool told_by_data =
      (op.hasTag(at::Tag::dynamic_output_shape) && name != "aten::linalg_lstsq") ||
      name == "aten::_unique";
  if (op.hasTag(at::Tag::data_dependent_output) || (told_by_data && !masks_matter)) {
    kind = Kind::kEager;
  }
  is_listwise = name.rfind("aten::_foreach_", 0) == 0;
  bumps_versions = is_listwise && writes_any;
  const bool asks_products = !is_builtin(name) || has_part(kOfLibraries, name);
  const bool asks_attention = !is_builtin(name) || has_part(kWithAttention, name);
  asks_flags = (asks_products ? kAsksProducts : kAsksNothing) |
      (asks_attention ? kAsksAttention : kAsksNothing);
  asks_grad_mode = name == "aten::mkldnn_rnn_layer";
  warns_in_vain = name == "aten::_cudnn_rnn";  // weights are in one piece on plain CUDA only
  hidden_generator = op.hasTag(at::Tag::nondeterministic_seeded) && generator < 0;
  dropout = dropout_argument(schema);
  portable = portable_kernel(name);
  floats_matter = !tensor_inputs;
  takes_cpu_tensors = name == "aten::copy_";
  builtin = is_builtin(name);
  // A custom operator without a meta function may return anything.
  if (!builtin && kind == Kind::kRecord && !op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) {
    kind = Kind::kEager;
  }
}

Operator& operator_of(const c10::OperatorHandle& handle) {
  struct Entry {
    const void* id = nullptr;
    uint64_t epoch = 0;
    Operator* op = nullptr;
  };
  thread_local std::array<Entry, 512> recent;
  const void* id = identity(handle);
  auto& entry = recent[(reinterpret_cast<uintptr_t>(id) >> 6) % recent.size()];
  const auto epoch = table().epoch.load(std::memory_order_relaxed);
  if (C10_UNLIKELY(entry.id != id || entry.epoch != epoch)) {
    std::lock_guard lock(table().mutex);
    auto& slot = table().operators[id];
    if (slot == nullptr) {
      slot = std::make_unique<Operator>(handle);
    }
    entry = {id, epoch, slot.get()};
  }
  return *entry.op;
}

void for_each_operator(const std::function<void(Operator&)>& visit) {
  std::lock_guard lock(table().mutex);
  for (auto& [id, op] : table().operators) {
    visit(*op);
  }
}

void retire_with_their_registration() {
  static auto* listener = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Retire>()));
  (void)listener;
}

}  // namespace tiny
