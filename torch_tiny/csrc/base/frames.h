// The interpreter's frames, read without the GIL: Python's own functions for that count references.
// All that depends on the version of Python is here.
#pragma once

#define Py_BUILD_CORE 1
#include <Python.h>
#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030F0000
#error "torch_tiny supports Python 3.11, 3.12, 3.13 and 3.14"
#endif
#ifdef Py_GIL_DISABLED
#error "torch_tiny needs a Python that has the GIL, not a free-threaded build"
#endif
#if PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_interpframe.h>
#else
#include <internal/pycore_frame.h>
#endif
#undef Py_BUILD_CORE

namespace tiny {

using Frame = _PyInterpreterFrame;  // its caller's is `previous`

// Only the thread itself changes its frames. Null where it runs no Python.
inline Frame* innermost_frame(const PyThreadState& thread) {
#if PY_VERSION_HEX >= 0x030D0000
  return thread.current_frame;
#else
  return thread.cframe == nullptr ? nullptr : thread.cframe->current_frame;
#endif
}

// False for the frames through which C calls Python.
inline bool has_code(const Frame& frame) {
#if PY_VERSION_HEX >= 0x030E0000
  return frame.owner < FRAME_OWNED_BY_INTERPRETER;
#elif PY_VERSION_HEX >= 0x030C0000
  return frame.owner != FRAME_OWNED_BY_CSTACK;
#else
  return true;
#endif
}

// Of a frame that has one.
inline PyCodeObject* code_of(Frame& frame) {
#if PY_VERSION_HEX >= 0x030D0000
  return _PyFrame_GetCode(&frame);
#else
  return frame.f_code;
#endif
}

// The byte offset into its code of what it is executing.
inline int instruction_of(Frame& frame) {
  return _PyInterpreterFrame_LASTI(&frame) * static_cast<int>(sizeof(_Py_CODEUNIT));
}

// Whether it is code that Python never traces, such as what it puts below an __init__ since 3.13:
// a constant of the interpreter, which nothing may be written into.
inline bool is_interpreters_own(const PyCodeObject& code) {
  return code._co_firsttraceable >= Py_SIZE(&code);
}

// Has `died` called with a code object that dies. False if that cannot be, perhaps with an error.
template <void (*died)(void*)>
bool watch_code(PyCodeObject* code) {
  auto* object = reinterpret_cast<PyObject*>(code);
#if PY_VERSION_HEX >= 0x030C0000
  static const auto index = PyUnstable_Eval_RequestCodeExtraIndex(died);
  return index >= 0 && PyUnstable_Code_SetExtra(object, index, code) == 0;
#else
  static const auto index = _PyEval_RequestCodeExtraIndex(died);
  return index >= 0 && _PyCode_SetExtra(object, index, code) == 0;
#endif
}

}  // namespace tiny
