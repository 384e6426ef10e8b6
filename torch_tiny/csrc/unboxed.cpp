#include "unboxed.h"

#include <map>
#include <string>

#include "follow.h"
#include "note.h"
#include "record.h"

namespace tiny {
namespace {

template <typename Function>
class Unboxed;

template <typename Return, typename... Args>
class Unboxed<Return(Args...)> {
 public:
  explicit Unboxed(const c10::OperatorHandle& handle) : op_(operator_of(handle)) {}

  Return operator()(Args... args) const {
    ensure_ready();
    if constexpr (std::is_reference_v<Return>) {
      if (C10_LIKELY(follow(nullptr, args...))) {
        return written(args...);
      }
    } else if (at::Tensor result; C10_LIKELY(follow(&result, args...))) {
      return result;
    }
    Arguments arguments;
    TakeApart visitor(op_, arguments);
    (visitor.argument(args), ...);
    visitor.finish();
    if constexpr (std::is_reference_v<Return>) {
      if (arguments.keyed && record_known(op_, arguments, [](Queue&, const Signature&) {})) {
        return written(args...);
      }
      boxed(args...);
      return written(args...);
    } else {
      at::Tensor result;
      if (arguments.keyed &&
          record_known(op_, arguments, [&](Queue& queue, const Signature& signature) {
            result = fresh_result(queue, signature.results[0], arguments.device);
          })) {
        return result;
      }
      return boxed(args...).back().toTensor();
    }
  }

 private:
  // Notes the call if it is the one that came here last time, or like the last one of its kind.
  bool follow(at::Tensor* result, const std::decay_t<Args>&... args) const {
    const auto& first = first_tensor(args...);
    if (C10_UNLIKELY(!first.defined() || first.device().type() != kTiny)) {
      return false;
    }
    const auto device = first.device().index();
    auto& queue = Queue::of(device);
    if (C10_UNLIKELY(queue.is_full.load(std::memory_order_relaxed))) {
      return false;
    }
    const RecordingTime time(queue);
    const auto place = where();
    if (C10_UNLIKELY(queue.turns(place))) {
      return false;
    }
    std::unique_lock lock(queue.mutex);
    auto& values = queue.trace.values;
    const auto first_value = values.size();
    for (const auto* signature : {queue.expected(), queue.signatures.recent(op_)}) {
      if (signature == nullptr || signature->op != &op_ || !signature->grown.empty() ||
          signature->stale.load(std::memory_order_relaxed)) {
        continue;
      }
      Follow follow(*signature, values);
      if (C10_LIKELY((follow.argument(args) && ...) && follow.finish())) {
        note(queue, *signature, follow.tensors(), first_value, place, [&] {
          if (result != nullptr) {
            *result = fresh_result(queue, signature->results[0], device);
          }
        });
        time.stop();
        if (C10_UNLIKELY(queue.is_all_again())) {
          lock.unlock();
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
};

using Tensor = const at::Tensor&;
using Written = at::Tensor&;
using Number = const at::Scalar&;

template <typename Function>
torch::CppFunction unboxed(const c10::OperatorHandle& op) {
  return torch::CppFunction(Unboxed<Function>(op));
}

using Make = torch::CppFunction (*)(const c10::OperatorHandle&);

// T tensor, M tensor that is written, S number, B bool, I int, D float; then what is returned.
const std::map<std::string, Make>& forms() {
  static const auto* table = new std::map<std::string, Make>{
      {"T>T", &unboxed<at::Tensor(Tensor)>},
      {"TS>T", &unboxed<at::Tensor(Tensor, Number)>},
      {"TSS>T", &unboxed<at::Tensor(Tensor, Number, Number)>},
      {"TIB>T", &unboxed<at::Tensor(Tensor, int64_t, bool)>},
      {"TT>T", &unboxed<at::Tensor(Tensor, Tensor)>},
      {"TTS>T", &unboxed<at::Tensor(Tensor, Tensor, Number)>},
      {"TTT>T", &unboxed<at::Tensor(Tensor, Tensor, Tensor)>},
      {"TTTS>T", &unboxed<at::Tensor(Tensor, Tensor, Tensor, Number)>},
      {"TTTSS>T", &unboxed<at::Tensor(Tensor, Tensor, Tensor, Number, Number)>},
      {"M>M", &unboxed<at::Tensor&(Written)>},
      {"MS>M", &unboxed<at::Tensor&(Written, Number)>},
      {"MT>M", &unboxed<at::Tensor&(Written, Tensor)>},
      {"MTS>M", &unboxed<at::Tensor&(Written, Tensor, Number)>},
      {"MTT>M", &unboxed<at::Tensor&(Written, Tensor, Tensor)>},
      {"MTTS>M", &unboxed<at::Tensor&(Written, Tensor, Tensor, Number)>},
  };
  return *table;
}

char letter(const c10::Argument& argument) {
  switch (argument.real_type()->kind()) {
    case c10::TypeKind::TensorType:
      return argument.alias_info() == nullptr ? 'T' : argument.alias_info()->isWrite() ? 'M' : '?';
    case c10::TypeKind::NumberType:
      return 'S';
    case c10::TypeKind::BoolType:
      return 'B';
    case c10::TypeKind::IntType:
      return 'I';
    case c10::TypeKind::FloatType:
      return 'D';
    default:
      return '?';
  }
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

bool register_unboxed(torch::Library& library, const c10::OperatorHandle& op) {
  const auto found = forms().find(form_of(op.schema()));
  if (found == forms().end()) {
    return false;
  }
  library.impl(c10::toString(op.operator_name()).c_str(), found->second(op));
  return true;
}

}  // namespace tiny
