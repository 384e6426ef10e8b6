#include "python/composed_module.h"

#include <torch/csrc/Exceptions.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/device.h"
#include "random/generator.h"
#include "record/record.h"

namespace tiny {
namespace {

namespace py = pybind11;
using Values = c10::ArrayRef<c10::IValue>;

// The device of ours that it is on, or -1.
c10::DeviceIndex device_of(const c10::IValue& value) {
  const bool is_ours =
      value.isTensor() && value.toTensor().defined() && value.toTensor().device().type() == kTiny;
  return is_ours ? value.toTensor().device().index() : c10::DeviceIndex(-1);
}

bool is_on_portable(Values arguments) {
  const auto device = device_of(arguments[0]);
  return device >= 0 && is_portable(device);
}

bool is_without_doubles(Values arguments) {
  const auto device = device_of(arguments[0]);
  return device >= 0 && !has_type(device, at::kDouble);
}

bool is_of_portable_numbers(Values arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::IValue& value) {
    const auto device = device_of(value);
    return device >= 0 && has_portable_numbers(device);
  });
}

bool is_of_integers_on_cpu(Values arguments) {
  const auto device = device_of(arguments[0]);
  return device >= 0 && host_device(device).is_cpu() &&
      c10::isIntegralType(arguments[0].toTensor().scalar_type(), /*includeBool=*/false);
}

using Applies = bool (*)(Values);
const std::unordered_map<std::string, Applies> kWhere{
    {"the first argument is on a portable device", &is_on_portable},
    {"the first argument is on a device without float64", &is_without_doubles},
    {"an argument is on a device that draws from the portable stream", &is_of_portable_numbers},
    {"the first argument has integers, in memory of the CPU", &is_of_integers_on_cpu},
};

py::object to_python(const c10::IValue& value) {
  if (value.isNone() || (value.isTensor() && !value.toTensor().defined())) {
    return py::none();
  }
  if (value.isTensor()) {
    return py::cast(value.toTensor());
  }
  if (value.isGenerator()) {
    return py::cast(value.toGenerator());
  }
  if (value.isOptionalTensorList()) {
    py::list items;
    for (const auto& item : value.toListRef()) {
      items.append(to_python(item));
    }
    return items;
  }
  if (value.isString()) {
    return py::cast(value.toStringRef());
  }
  return py::cast(value.toScalar());
}

c10::IValue from_python(py::handle value) {
  return py::isinstance<py::bool_>(value) ? c10::IValue(value.cast<bool>())
                                          : c10::IValue(value.cast<at::Tensor>());
}

[[noreturn]] void raise_from_python() {
  python_error error;
  error.persist();
  throw error;
}

// What it is without us: made of others by PyTorch, or recorded.
void call_as_usual(const c10::OperatorHandle& op, c10::Stack* stack) {
  constexpr std::array kComposites{
      c10::DispatchKey::CompositeImplicitAutograd,
      c10::DispatchKey::CompositeExplicitAutogradNonFunctional,
      c10::DispatchKey::CompositeExplicitAutograd};
  const auto* composite = std::find_if(kComposites.begin(), kComposites.end(), [&](auto key) {
    return op.hasKernelForDispatchKey(key);
  });
  if (composite == kComposites.end() || op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) {
    return record(op, stack);
  }
  op.callBoxedForDispatchKey(*composite, *stack);
}

class Composed final : public c10::OperatorKernel {
 public:
  Composed(Applies applies, py::function function)
      : applies_(applies), function_(function.release()) {}

  void operator()(
      const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, c10::Stack* stack) const {
    const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
    if (!applies_(arguments)) {
      call_as_usual(op, stack);
    } else if (!compose(arguments, stack)) {
      record(op, stack);
    }
  }

 private:
  // False if this call is to be recorded.
  bool compose(Values arguments, c10::Stack* stack) const {
    const py::gil_scoped_acquire gil;
    py::tuple given(arguments.size());
    for (size_t i = 0; i < arguments.size(); ++i) {
      given[i] = to_python(arguments[i]);
    }
    const auto made =
        py::reinterpret_steal<py::object>(PyObject_CallObject(function_.ptr(), given.ptr()));
    if (!made) {
      raise_from_python();
    }
    if (made.is(py::reinterpret_borrow<py::object>(Py_NotImplemented))) {
      return false;
    }
    torch::jit::drop(*stack, arguments.size());
    if (!py::isinstance<py::tuple>(made)) {
      stack->push_back(from_python(made));
      return true;
    }
    for (const auto item : made.cast<py::tuple>()) {
      stack->push_back(from_python(item));
    }
    return true;
  }

  const Applies applies_;
  const py::handle function_;  // kept for good: the dispatcher outlives Python
};

torch::CppFunction kernel(const ComposedRow& row) {
  const auto& [name, where, function] = row;
  return torch::CppFunction::makeFromBoxedKernel(
      c10::BoxedKernel::makeFromFunctor(std::make_unique<Composed>(kWhere.at(where), function)));
}

}  // namespace

void install_composed(const std::vector<ComposedRow>& rows) {
  static auto* library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  static auto* differentiable = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  for (const auto& row : rows) {
    const auto& name = std::get<0>(row);
    library->impl(name.c_str(), kernel(row));
    const auto dot = name.find('.');
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
        name.substr(0, dot).c_str(), dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
    if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
      differentiable->impl(name.c_str(), kernel(row));
    }
  }
}

}  // namespace tiny
