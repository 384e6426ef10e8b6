#include "base/gil.h"

#include <Python.h>
#include <unistd.h>

namespace tiny {
namespace {

template <typename Take>
auto take_or_stand_still(const Take& take) {
  try {
    return take();
  } catch (...) {  // the thread is being ended; leaving this handler would end the process
    for (;;) {
      pause();
    }
  }
}

}  // namespace

WithoutGil::WithoutGil() {
  if (Py_IsInitialized() && PyGILState_Check()) {
    state_ = PyEval_SaveThread();
  }
}

WithoutGil::~WithoutGil() {
  if (state_ != nullptr) {
    take_or_stand_still([&] { PyEval_RestoreThread(static_cast<PyThreadState*>(state_)); });
  }
}

WithGil::WithGil() : state_(take_or_stand_still([] { return PyGILState_Ensure(); })) {}

WithGil::~WithGil() {
  PyGILState_Release(static_cast<PyGILState_STATE>(state_));
}

}  // namespace tiny
