#include "record/registration.h"

#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "core/operator.h"
#include "record/record.h"
#include "record/unboxed.h"

namespace tiny {
namespace {

// Their composite kernels look at the type of the device and know only PyTorch's own.
// addr_ tells by the address of its out= that it is in place, which is lost on the way.
constexpr std::array<std::string_view, 5> kChooseByDevice = {
    "aten::convolution",
    "aten::convolution_backward",
    "aten::mode.values",
    "aten::conj_physical_",
    "aten::addr_"};

template <size_t N>
bool contains(const std::array<std::string_view, N>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool has_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

bool has_own_kernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

// Where the memory's device has a kernel of its own, or one call can stand for a list of them.
bool hidden_by_composite(const c10::OperatorHandle& op, const std::string& name) {
  return contains(kChooseByDevice, name) ||
      (has_composite(op) && (has_own_kernel(op) || name.rfind("aten::_foreach_", 0) == 0));
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
    const auto text = c10::toString(name);
    const auto kind = Operator(*found).kind.load();
    if (text.rfind("aten::", 0) != 0 ||
        found->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) ||
        !(has_own_kernel(*found) || hidden_by_composite(*found, text)) ||
        found->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
        kind == Operator::Kind::kView) {
      continue;
    }
    const bool unboxed =
        kind == Operator::Kind::kRecord && register_unboxed(*library, *autograd, *found);
    if (!unboxed && hidden_by_composite(*found, text)) {
      library->impl(text.c_str(), torch::CppFunction::makeFromBoxedFunction<&record>());
    }
  }
  register_before_autograd(*autograd, dispatcher.findSchemaOrThrow("aten::copy_", ""));
  retire_with_their_registration();
}

}  // namespace tiny
