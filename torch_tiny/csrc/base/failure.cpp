#include "base/failure.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "base/gil.h"

namespace tiny {
namespace {

// Python's exceptions come in C++ ones that may be raised only once, so they are taken out.
class PythonFailure {
 public:
  // Takes over the references; with the GIL held.
  PythonFailure(PyObject* type, PyObject* value, PyObject* traceback) {
    PyErr_NormalizeException(&type, &value, &traceback);
    type_ = kept(type);
    value_ = kept(value);
    traceback_ = kept(traceback);
  }
  [[noreturn]] void raise() const {
    const WithGil gil;
    PyErr_Restore(again(type_), again(value_), again(traceback_));
    throw py::error_already_set();
  }

 private:
  using Kept = std::shared_ptr<PyObject>;

  static Kept kept(PyObject* object) {
    return Kept(object, [](PyObject* last) {
      if (last != nullptr && Py_IsInitialized()) {
        const WithGil gil;
        Py_DECREF(last);
      }
    });
  }
  static PyObject* again(const Kept& object) {
    Py_XINCREF(object.get());
    return object.get();
  }

  Kept type_, value_, traceback_;
};

}  // namespace

std::exception_ptr current_failure() {
  try {
    throw;
  } catch (py::error_already_set& error) {
    const WithGil gil;
    return std::make_exception_ptr(PythonFailure(
        error.type().inc_ref().ptr(),
        error.value().inc_ref().ptr(),
        error.trace().inc_ref().ptr()));
  } catch (python_error& error) {
    const WithGil gil;
    error.persist();
    Py_XINCREF(error.type);
    Py_XINCREF(error.value);
    Py_XINCREF(error.traceback);
    return std::make_exception_ptr(PythonFailure(error.type, error.value, error.traceback));
  } catch (...) {
    return std::current_exception();
  }
}

void raise_failure(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const PythonFailure& python) {
    python.raise();
  }
}

}  // namespace tiny
