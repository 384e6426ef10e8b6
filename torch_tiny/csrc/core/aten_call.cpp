#include "core/aten_call.h"

#include <ATen/Context.h>
#include <ATen/ops/clone.h>
#include <torch/library.h>

#include <algorithm>

#include "memory/storage.h"
#include "random/generator.h"
#include "random/portable_random.h"

namespace tiny {
namespace {

const c10::DispatchKeySet kIncluded{c10::DispatchKey::BackendSelect};
const c10::DispatchKeySet kExcluded =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

thread_local const c10::IValue* hidden_numbers = nullptr;

// Every operator that is called on this thread comes by here while this key is included.
constexpr auto kFillIn = c10::DispatchKey::TESTING_ONLY_GenericMode;
thread_local const at::Generator* filled_in = nullptr;

bool is_elsewhere(const c10::IValue& value, c10::Device device) {
  return value.isTensor() && value.toTensor().defined() &&
      value.toTensor().device().type() != device.type();
}

void fill_in_generator(
    const c10::OperatorHandle& handle, c10::DispatchKeySet keys, c10::Stack* stack) {
  const auto& op = operator_of(handle);
  if (op.generator >= 0 && filled_in != nullptr) {
    const auto arguments = torch::jit::last(*stack, op.writes.size());
    auto& generator = (*stack)[stack->size() - op.writes.size() + op.generator];
    if (generator.isNone() &&
        std::none_of(arguments.begin(), arguments.end(), [](const c10::IValue& value) {
          return is_elsewhere(value, filled_in->device());
        })) {
      generator = *filled_in;
    }
  }
  handle.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kFillIn), stack);
}

// The operator is made of others that draw: those get our generator. The host's default one is the
// program's, whose other threads may draw from it at any time.
void call_with_filled_in(const Operator& op, const at::Generator& ours, c10::Stack& stack) {
  struct FillIn {
    const at::Generator* before;
    c10::impl::IncludeDispatchKeyGuard include{kFillIn};
    ~FillIn() {
      filled_in = before;
    }
  };
  const FillIn fill_in{std::exchange(filled_in, &ours)};
  op.handle.callBoxed(stack);
}

// A kernel of a GPU asks its default generator itself: that one has our numbers meanwhile.
void call_with_default(
    const Operator& op, c10::Device host, const at::Generator& ours, c10::Stack& stack) {
  const auto& theirs = at::globalContext().defaultGenerator(host);
  std::lock_guard lock(ours.unsafeGetGeneratorImpl()->mutex_);
  const auto swap = [&](const at::Tensor& state) {
    std::lock_guard swapping(theirs.unsafeGetGeneratorImpl()->mutex_);
    auto before = theirs.get_state();
    theirs.unsafeGetGeneratorImpl()->set_state(*state.unsafeGetTensorImpl());
    return before;
  };
  const auto saved = swap(ours.get_state());
  auto swap_back = [&] {
    ours.unsafeGetGeneratorImpl()->set_state(*swap(saved).unsafeGetTensorImpl());
  };
  try {
    op.handle.callBoxed(stack);
  } catch (...) {
    swap_back();
    throw;
  }
  swap_back();
}

}  // namespace

HostScope::HostScope(c10::DeviceIndex index)
    : no_inference_mode_(false), no_grad_(false), keys_(kIncluded, kExcluded) {
  const auto host = host_device(index);
  if (host.type() != c10::kCPU) {
    device_.reset_device(host);
  }
}

at::Tensor copy_on_host(const at::Tensor& tensor) {
  HostScope scope(current_device());
  return at::clone(tensor);
}

void call_silently(const Operator& op, c10::Stack& stack) {
  struct Silence final : c10::WarningHandler {
    void process(const c10::Warning& /*warning*/) override {}
  };
  Silence silence;
  c10::WarningUtils::WarningHandlerGuard guard(&silence);
  op.handle.callBoxed(stack);
}

HiddenNumbers::HiddenNumbers(const c10::IValue& numbers)
    : before_(std::exchange(hidden_numbers, &numbers)) {}

HiddenNumbers::~HiddenNumbers() {
  hidden_numbers = before_;
}

void call_with_numbers(const Operator& op, c10::DeviceIndex index, c10::Stack& stack) {
  if (op.hidden_generator) {
    const bool drawn = hidden_numbers != nullptr && is_draw(*hidden_numbers);
    const auto ours =
        drawn ? host_generator(index, draw_of(*hidden_numbers)) : host_generator(index);
    const auto host = host_device(index);
    return host.is_cpu() ? call_with_filled_in(op, ours, stack)
                         : call_with_default(op, host, ours, stack);
  }
  auto& numbers = stack[stack.size() - op.writes.size() + op.generator];
  if (!is_draw(numbers)) {
    return op.handle.callBoxed(stack);
  }
  const auto draw = draw_of(numbers);
  if (op.portable != nullptr) {
    return op.portable->run(stack, draw);
  }
  numbers = host_generator(index, draw);
  op.handle.callBoxed(stack);
}

}  // namespace tiny

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&tiny::fill_in_generator>());
}
