#define Py_BUILD_CORE 1
#include <Python.h>
#if PY_VERSION_HEX >= 0x030D0000
#error "torch_tiny supports Python 3.11 and 3.12"
#endif
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "where.h"

namespace tiny {
namespace {

struct Gil {
  PyGILState_STATE state = PyGILState_Ensure();
  ~Gil() {
    PyGILState_Release(state);
  }
};

enum class Origin : char { kUnknown, kUser, kLibrary };

struct Codes {
  std::mutex mutex;
  std::unordered_map<const PyCodeObject*, Origin> origins;
};

Codes& codes() {
  static auto* table = new Codes;
  return *table;
}

std::vector<std::string>& library_folders() {
  static auto* folders = new std::vector<std::string>{"<frozen "};
  return *folders;
}

bool is_library(std::string_view file) {
  const auto& folders = library_folders();
  return std::any_of(folders.begin(), folders.end(), [&](const std::string& folder) {
    return file.substr(0, folder.size()) == folder;
  });
}

// First sight of a code object: keep it alive, so that its address stays its name.
Origin learn(PyCodeObject* code) {
  Gil gil;
  Py_INCREF(code);
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  const auto origin = file == nullptr || is_library(file) ? Origin::kLibrary : Origin::kUser;
  PyErr_Clear();
  std::lock_guard lock(codes().mutex);
  codes().origins.emplace(code, origin);
  return origin;
}

Origin origin_of(PyCodeObject* code) {
  struct Entry {
    const PyCodeObject* code = nullptr;
    Origin origin = Origin::kUnknown;
  };
  thread_local std::array<Entry, 256> seen;
  auto& entry = seen[(reinterpret_cast<uintptr_t>(code) >> 5) % seen.size()];
  if (entry.code == code) {
    return entry.origin;
  }
  Origin origin = Origin::kUnknown;
  {
    std::lock_guard lock(codes().mutex);
    if (auto found = codes().origins.find(code); found != codes().origins.end()) {
      origin = found->second;
    }
  }
  if (origin == Origin::kUnknown) {
    origin = learn(code);
  }
  entry = {code, origin};
  return origin;
}

// Names of autograd nodes live as long as the process, so that a Where stays a plain value.
const char* kept(const std::string& name) {
  static auto* mutex = new std::mutex;
  static auto* names = new std::unordered_set<std::string>;
  std::lock_guard lock(*mutex);
  return names->insert(name).first->c_str();
}

}  // namespace

void add_library_folder(std::string folder) {
  library_folders().push_back(std::move(folder));
}

Where where() {
  Where result;
  PyThreadState* thread = Py_IsInitialized() ? PyGILState_GetThisThreadState() : nullptr;
  if (thread != nullptr && thread->cframe != nullptr) {
    // Only this thread changes its frames, and it is busy here.
    for (auto* frame = thread->cframe->current_frame; frame != nullptr; frame = frame->previous) {
#if PY_VERSION_HEX >= 0x030C0000
      if (frame->owner == FRAME_OWNED_BY_CSTACK) {
        continue;
      }
#endif
      if (origin_of(frame->f_code) == Origin::kUser) {
        result.code = frame->f_code;
        result.instruction =
            _PyInterpreterFrame_LASTI(frame) * static_cast<int>(sizeof(_Py_CODEUNIT));
        return result;
      }
    }
  }
  if (auto node = torch::autograd::get_current_node()) {
    // A node's name is made from its type at some cost; one type is often seen many times.
    thread_local const std::type_info* last_type = nullptr;
    thread_local const char* last_name = nullptr;
    const auto& unwrapped = *node;
    if (&typeid(unwrapped) != last_type) {
      last_type = &typeid(unwrapped);
      last_name = kept(node->name());
    }
    result.node = last_name;
  }
  return result;
}

std::string describe(const Where& where) {
  if (where.node != nullptr) {
    return std::string("backward of ") + where.node;
  }
  if (where.code == nullptr || !Py_IsInitialized()) {
    return "unknown";
  }
  Gil gil;
  const char* file = PyUnicode_AsUTF8(where.code->co_filename);
  const int line = PyCode_Addr2Line(where.code, where.instruction);
  return std::string(file == nullptr ? "unknown" : file) + ":" + std::to_string(line);
}

}  // namespace tiny
