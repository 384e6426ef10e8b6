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

using Trait = bool Operator::*;

const std::unordered_map<std::string_view, Trait> kTraits{
    {"is_listwise", &Operator::is_listwise},
    {"takes_cpu_tensors", &Operator::takes_cpu_tensors},
    {"chooses_by_device", &Operator::chooses_by_device},
    {"is_sized_by_data", &Operator::is_sized_by_data},
    {"is_sized_by_shapes", &Operator::is_sized_by_shapes},
    {"needs_real_data", &Operator::needs_real_data},
    {"asks_grad_mode", &Operator::asks_grad_mode},
    {"warns_in_vain", &Operator::warns_in_vain},
    {"checks_signs", &Operator::checks_signs},
    {"asks_products", &Operator::asks_products},
    {"asks_attention", &Operator::asks_attention},
    {"waits_for_device", &Operator::waits_for_device},
    {"multiplies", &Operator::multiplies},
    {"adds_product", &Operator::adds_product},
};

std::vector<std::pair<std::string, Trait>>& told() {
  static auto* patterns = new std::vector<std::pair<std::string, Trait>>;
  return *patterns;
}

bool fits(std::string_view pattern, std::string_view name) {
  const bool begins = !pattern.starts_with('*'), ends = !pattern.ends_with('*');
  pattern.remove_prefix(begins ? 0 : 1);
  pattern.remove_suffix(ends ? 0 : 1);
  if (!begins && !ends) {
    return name.find(pattern) != std::string_view::npos;
  }
  return (!begins || name.starts_with(pattern)) && (!ends || name.ends_with(pattern)) &&
      (!begins || !ends || name.size() == pattern.size());
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
  builtin = is_builtin(name);
  for (const auto& [pattern, trait] : told()) {
    this->*trait |= fits(pattern, name);
  }
  masks_matter = op.hasTag(at::Tag::dynamic_output_shape) && takes_indices;
  is_sized_by_data |= op.hasTag(at::Tag::dynamic_output_shape) && !is_sized_by_shapes;
  if (op.hasTag(at::Tag::data_dependent_output) || (is_sized_by_data && !masks_matter)) {
    kind = Kind::kEager;
  }
  bumps_versions = is_listwise && writes_any;
  asks_flags = (asks_products || !builtin ? kAsksProducts : kAsksNothing) |
      (asks_attention || !builtin ? kAsksAttention : kAsksNothing);
  hidden_generator = op.hasTag(at::Tag::nondeterministic_seeded) && generator < 0;
  dropout = dropout_argument(schema);
  portable = portable_kernel(name);
  floats_matter = !tensor_inputs;
  // A custom operator without a meta function may return anything.
  if (!builtin && kind == Kind::kRecord && !op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) {
    kind = Kind::kEager;
  }
}

void set_traits(const std::unordered_map<std::string, std::vector<std::string>>& traits) {
  for (const auto& [name, patterns] : traits) {
    for (const auto& pattern : patterns) {
      told().emplace_back(pattern, kTraits.at(name));
    }
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
