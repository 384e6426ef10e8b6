#include "record/registration.h"

#include <torch/library.h>

#include "core/operator.h"
#include "record/record.h"
#include "record/unboxed.h"

namespace tiny {
namespace {

bool has_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

bool has_own_kernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

// Where the memory's device has a kernel of its own, or one call can stand for a list of them.
bool hidden_by_composite(const Operator& op) {
  return op.chooses_by_device ||
      (has_composite(op.handle) && (has_own_kernel(op.handle) || op.is_listwise));
}

}  // namespace

void install_operators() {
  auto& dispatcher = c10::Dispatcher::singleton();
  static auto* library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  static auto* autograd = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto found = dispatcher.findSchema(name);
    if (!found.has_value()) {
      continue;
    }
    const Operator op(*found);
    if (op.takes_cpu_tensors) {
      register_before_autograd(*autograd, *found);
    }
    const auto kind = op.kind.load();
    if (op.name.rfind("aten::", 0) != 0 ||
        found->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) ||
        !(has_own_kernel(*found) || hidden_by_composite(op)) ||
        found->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
        kind == Operator::Kind::kView) {
      continue;
    }
    const bool unboxed =
        kind == Operator::Kind::kRecord && register_unboxed(*library, *autograd, *found);
    if (!unboxed && hidden_by_composite(op)) {
      library->impl(op.name.c_str(), torch::CppFunction::makeFromBoxedFunction<&record>());
    }
  }
  retire_with_their_registration();
}

}  // namespace tiny
