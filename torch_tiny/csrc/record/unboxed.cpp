#include "record/unboxed.h"

#include <torch/csrc/autograd/variable.h>

#include <cctype>
#include <map>
#include <string>

#include "core/key_match.h"
#include "record/append_call.h"
#include "record/record.h"
#include "run/queue.h"

namespace tiny {
namespace {

// Whether the gradient of this tensor along a direction is being computed.
bool has_tangent(const torch::autograd::AutogradMeta& meta) {
  if (meta.fw_grad_ != nullptr || !meta.is_view_) {
    return meta.fw_grad_ != nullptr;
  }
  const auto& view = static_cast<const torch::autograd::DifferentiableViewMeta&>(meta);
  const auto* base = view.has_fw_view()
      ? torch::autograd::impl::get_autograd_meta(view.get_forward_view().base_)
      : nullptr;
  return base != nullptr && base->fw_grad_ != nullptr;
}

// Whether autograd has to look at a call with this argument.
bool concerns_autograd(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return false;
  }
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta != nullptr &&
      ((c10::GradMode::is_enabled() && meta->requires_grad()) || has_tangent(*meta));
}

template <typename Argument>
bool concerns_autograd(const Argument& /*a number*/) {
  return false;
}

template <typename Function>
class Unboxed;

template <typename Return, typename... Args>
class Unboxed<Return(Args...)> {
 public:
  explicit Unboxed(const c10::OperatorHandle& handle)
      : op_(operator_of(handle)), typed_(handle.typed<Return(Args...)>()) {}

  static torch::CppFunction recorder(const c10::OperatorHandle& handle) {
    return torch::CppFunction(Unboxed(handle));
  }
  static torch::CppFunction in_place_of_autograd(const c10::OperatorHandle& handle) {
    return torch::CppFunction(
        [unboxed = Unboxed(handle)](c10::DispatchKeySet keys, Args... args) -> Return {
          return unboxed.before_autograd(keys, std::forward<Args>(args)...);
        });
  }

  Return operator()(Args... args) const {
    ensure_ready();
    if constexpr (std::is_reference_v<Return>) {
      if (C10_LIKELY(follow(nullptr, args...))) {
        return written(args...);
      }
    } else if (at::Tensor result; C10_LIKELY(follow(&result, args...))) {
      return result;
    }
    return record_anew(args...);
  }

  // In place of autograd's kernel, which costs as much as recording even where there is nothing to
  // differentiate.
  Return before_autograd(c10::DispatchKeySet keys, Args... args) const {
    if (C10_LIKELY(comes_here_next(keys) && !(concerns_autograd(args) || ...))) {
      ensure_ready();
      if constexpr (std::is_reference_v<Return>) {
        auto& self = written(args...);
        if (C10_LIKELY(!self.is_inference() && follow(nullptr, args...))) {
          self.unsafeGetTensorImpl()->bump_version();
          return self;
        }
      } else if (at::Tensor result; C10_LIKELY(follow(&result, args...))) {
        return result;
      }
    }
    // Autograd's own kernel is the same for all devices. The Python dispatcher names keys that have
    // had their turn again: with one of them left in, the call would come back here for ever.
    return typed_.redispatch(
        (keys & c10::after_autograd_keyset).add(c10::DispatchKey::AutogradOther),
        std::forward<Args>(args)...);
  }

 private:
  // Whether nothing stands between autograd and the recorder: no mode, no lazy conjugation.
  static bool comes_here_next(c10::DispatchKeySet keys) {
    return (keys & c10::after_ADInplaceOrView_keyset).highestPriorityTypeId() ==
        c10::DispatchKey::PrivateUse1;
  }

  Return record_anew(Args... args) const {
    Arguments arguments;
    CallKeyWriter visitor(op_, arguments);
    auto is_written = op_.writes.begin();
    ((visitor.next_is(*is_written++), visitor.argument(args)), ...);
    visitor.finish();
    if constexpr (std::is_reference_v<Return>) {
      if (arguments.keyed &&
          record_known(op_, arguments, [](const Recording&, const Signature&) {})) {
        return written(args...);
      }
      boxed(args...);
      return written(args...);
    } else {
      at::Tensor result;
      if (arguments.keyed &&
          record_known(op_, arguments, [&](const Recording& recording, const Signature& signature) {
            result = fresh_result(recording, signature.results[0], arguments.device);
          })) {
        return result;
      }
      return boxed(args...).back().toTensor();
    }
  }

  // Notes the call if it is the one that came here last time, or like the last one of its kind.
  bool follow(at::Tensor* result, const std::decay_t<Args>&... args) const {
    const auto& first = first_tensor(args...);
    if (C10_UNLIKELY(!first.defined() || first.device().type() != kTiny)) {
      return false;
    }
    const auto device = first.device().index();
    auto& queue = Queue::of(device);
    if (C10_UNLIKELY(queue.recorder.is_full.load(std::memory_order_relaxed))) {
      return false;
    }
    const RecordingTime time(queue.recorder);
    const auto place = source_line();
    if (C10_UNLIKELY(queue.turns(place))) {
      return false;
    }
    const auto flags = flags_now(op_.asks_flags);
    Recording recording(queue.recorder);
    if (C10_UNLIKELY(!recording->accepts(flags, place))) {
      return false;
    }
    auto& values = recording->trace.values;
    const auto first_value = values.size();
    for (const auto* signature : {recording->expected(), recording->signatures.recent(op_)}) {
      if (signature == nullptr || signature->op != &op_ || !signature->grown.empty() ||
          signature->stale.load(std::memory_order_relaxed)) {
        continue;
      }
      KeyMatch follow(*signature, values);
      if (C10_LIKELY((follow.argument(args) && ...) && follow.finish())) {
        append_call(recording, *signature, follow.tensors(), first_value, place, [&] {
          if (result != nullptr) {
            *result = fresh_result(recording, signature->results[0], device);
          }
        });
        time.stop(recording);
        if (C10_UNLIKELY(recording->is_all_again())) {
          recording.unlock();
          queue.run(kAhead);
        }
        return true;
      }
      values.resize(first_value);
    }
    return false;
  }

  template <typename... Given>
  static const at::Tensor& first_tensor(const at::Tensor& first, const Given&... /*rest*/) {
    return first;
  }

  c10::Stack boxed(const std::decay_t<Args>&... args) const {
    c10::Stack stack;
    (stack.emplace_back(args), ...);
    record(op_.handle, &stack);
    return stack;
  }

  // The argument that an in-place or out= operator returns.
  template <typename... Given>
  static at::Tensor& written(Given&... args) {
    at::Tensor* found = nullptr;
    (
        [&] {
          if constexpr (std::is_same_v<Given, at::Tensor>) {
            found = found == nullptr ? &args : found;
          }
        }(),
        ...);
    return *found;
  }

  Operator& op_;
  c10::TypedOperatorHandle<Return(Args...)> typed_;
};

using Tensor = const at::Tensor&;
using Written = at::Tensor&;
using Number = const at::Scalar&;
using SomeNumber = const std::optional<at::Scalar>&;
using SomeType = std::optional<at::ScalarType>;

struct Form {
  torch::CppFunction (*recorder)(const c10::OperatorHandle&);
  torch::CppFunction (*in_place_of_autograd)(const c10::OperatorHandle&);
};

template <typename Function>
Form form() {
  return {&Unboxed<Function>::recorder, &Unboxed<Function>::in_place_of_autograd};
}

// T tensor, M tensor that is written, S number, B bool, I int, D float, A ints, E type, G text; in
// small letters what may be left out; then what is returned.
const std::map<std::string, Form>& forms() {
  static const auto* table = new std::map<std::string, Form>{
      {"T>T", form<at::Tensor(Tensor)>()},
      {"TS>T", form<at::Tensor(Tensor, Number)>()},
      {"TSS>T", form<at::Tensor(Tensor, Number, Number)>()},
      {"Tss>T", form<at::Tensor(Tensor, SomeNumber, SomeNumber)>()},
      {"TG>T", form<at::Tensor(Tensor, std::string_view)>()},
      {"TAB>T", form<at::Tensor(Tensor, at::IntArrayRef, bool)>()},
      {"TaBe>T", form<at::Tensor(Tensor, at::OptionalIntArrayRef, bool, SomeType)>()},
      {"TIB>T", form<at::Tensor(Tensor, int64_t, bool)>()},
      {"TiB>T", form<at::Tensor(Tensor, std::optional<int64_t>, bool)>()},
      {"TIT>T", form<at::Tensor(Tensor, int64_t, Tensor)>()},
      {"TITB>T", form<at::Tensor(Tensor, int64_t, Tensor, bool)>()},
      {"TT>T", form<at::Tensor(Tensor, Tensor)>()},
      {"TTS>T", form<at::Tensor(Tensor, Tensor, Number)>()},
      {"TTG>T", form<at::Tensor(Tensor, Tensor, std::string_view)>()},
      {"TTIE>T", form<at::Tensor(Tensor, Tensor, int64_t, at::ScalarType)>()},
      {"TTT>T", form<at::Tensor(Tensor, Tensor, Tensor)>()},
      {"TTTS>T", form<at::Tensor(Tensor, Tensor, Tensor, Number)>()},
      {"TTTSS>T", form<at::Tensor(Tensor, Tensor, Tensor, Number, Number)>()},
      {"M>M", form<at::Tensor&(Written)>()},
      {"MS>M", form<at::Tensor&(Written, Number)>()},
      {"MT>M", form<at::Tensor&(Written, Tensor)>()},
      {"MTB>M", form<at::Tensor&(Written, Tensor, bool)>()},
      {"MTS>M", form<at::Tensor&(Written, Tensor, Number)>()},
      {"MTT>M", form<at::Tensor&(Written, Tensor, Tensor)>()},
      {"MTTS>M", form<at::Tensor&(Written, Tensor, Tensor, Number)>()},
  };
  return *table;
}

char letter(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return 'T';
    case c10::TypeKind::NumberType:
      return 'S';
    case c10::TypeKind::BoolType:
      return 'B';
    case c10::TypeKind::IntType:
      return 'I';
    case c10::TypeKind::FloatType:
      return 'D';
    case c10::TypeKind::StringType:
      return 'G';
    case c10::TypeKind::ScalarTypeType:
      return 'E';
    case c10::TypeKind::ListType:
      return letter(*type.containedType(0)) == 'I' ? 'A' : '?';
    case c10::TypeKind::OptionalType:
      return static_cast<char>(std::tolower(letter(*type.containedType(0))));
    default:
      return '?';
  }
}

char letter(const c10::Argument& argument) {
  const auto* alias = argument.alias_info();
  const auto plain = letter(*argument.real_type());
  return alias == nullptr ? plain : alias->isWrite() && plain == 'T' ? 'M' : '?';
}

std::string form_of(const c10::FunctionSchema& schema) {
  std::string form;
  for (const auto& argument : schema.arguments()) {
    form += letter(argument);
  }
  form += '>';
  for (const auto& result : schema.returns()) {
    form += letter(result);
  }
  return form;
}

}  // namespace

bool register_unboxed(
    torch::Library& library, torch::Library& autograd, const c10::OperatorHandle& op) {
  const auto found = forms().find(form_of(op.schema()));
  if (found == forms().end()) {
    return false;
  }
  library.impl(c10::toString(op.operator_name()).c_str(), found->second.recorder(op));
  register_before_autograd(autograd, op);
  return true;
}

void register_before_autograd(torch::Library& autograd, const c10::OperatorHandle& op) {
  const auto found = forms().find(form_of(op.schema()));
  if (found != forms().end() && op.hasKernelForDispatchKey(c10::DispatchKey::Autograd)) {
    autograd.impl(
        c10::toString(op.operator_name()).c_str(), found->second.in_place_of_autograd(op));
  }
}

}  // namespace tiny
