#include "core/aten_call.h"

#include <ATen/Context.h>
#include <ATen/ops/clone.h>
#include <torch/library.h>

#include <algorithm>
#include <unordered_map>

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

std::vector<at::Tensor> meta_tensors(const Arguments& arguments) {
  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages;
  std::vector<at::Tensor> metas;
  metas.reserve(arguments.tensors.size());
  for (const auto* tensor : arguments.tensors) {
    auto& storage = storages[tensor->storage().unsafeGetStorageImpl()];
    if (!storage) {
      storage = c10::Storage(
          c10::make_intrusive<c10::StorageImpl>(
              c10::StorageImpl::use_byte_size_t(),
              static_cast<int64_t>(tensor->storage().nbytes()),
              c10::DataPtr(nullptr, c10::Device(c10::kMeta)),
              c10::GetAllocator(c10::kMeta),
              /*resizable=*/true));
    }
    auto meta = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::Meta), tensor->dtype());
    meta.unsafeGetTensorImpl()->set_sizes_and_strides(
        tensor->sizes(), tensor->strides(), tensor->storage_offset());
    if (tensor->is_conj()) {
      meta._set_conj(true);
    }
    if (tensor->is_neg()) {
      meta._set_neg(true);
    }
    metas.push_back(std::move(meta));
  }
  return metas;
}

std::vector<at::Tensor> made_up_tensors(const Arguments& arguments, int number) {
  HostScope scope(arguments.device);
  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages;
  std::vector<at::Tensor> made;
  made.reserve(arguments.tensors.size());
  for (const auto* tensor : arguments.tensors) {
    auto& storage = storages[tensor->storage().unsafeGetStorageImpl()];
    const auto nbytes = tensor->storage().nbytes();
    const auto dtype = tensor->scalar_type();
    if (!storage) {
      storage = c10::Storage(allocate_host(arguments.device, nbytes));
      const auto count = static_cast<int64_t>(nbytes / tensor->dtype().itemsize());
      host_tensor(storage, {count}, {1}, 0, dtype, false, false).fill_(number);
    }
    made.push_back(host_tensor(
        storage,
        tensor->sizes(),
        tensor->strides(),
        tensor->storage_offset(),
        dtype,
        tensor->is_conj(),
        tensor->is_neg()));
  }
  return made;
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
