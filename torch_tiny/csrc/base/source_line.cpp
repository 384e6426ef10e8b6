#include "base/frames.h"  // before all that includes Python.h

#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/device.h"
#include "base/gil.h"
#include "base/source_line.h"

namespace tiny {
namespace {

enum class Origin : char { kUnknown, kUser, kLibrary };

struct Known {
  Origin origin = Origin::kUnknown;
  PyCodeObject* code = nullptr;  // of the user: the one that stands for it
};

// Code that says the same: a program that makes its functions anew makes the same ones.
using Content = std::tuple<std::string, std::string, int, std::string>;

struct Codes {
  std::mutex mutex;
  std::unordered_map<const PyCodeObject*, Known> known;  // that live
  std::map<Content, PyCodeObject*> kept;                 // under the GIL
};

Codes& codes() {
  static auto* table = new Codes;
  return *table;
}

constexpr size_t kMostKept = 16'384;  // the lines of code beyond that are not known

// Grows when a code object dies: then another one may come to have its address.
std::atomic<uint64_t> deaths{1};

void forget(void* code) {
  if (in_bad_fork()) {
    return;  // a thread that stayed behind may have the lock
  }
  std::lock_guard lock(codes().mutex);
  codes().known.erase(static_cast<PyCodeObject*>(code));
  deaths.fetch_add(1, std::memory_order_release);
}

// Lets us know when a code object dies. False if that cannot be.
bool watch(PyCodeObject* code) {
  const bool done = watch_code<&forget>(code);
  PyErr_Clear();
  return done;
}

// Names of files need not be UTF-8.
std::string text_of(PyObject* unicode) {
  auto* bytes = PyUnicode_AsEncodedString(unicode, "utf-8", "backslashreplace");
  PyErr_Clear();
  std::string text = bytes == nullptr ? "unknown" : PyBytes_AS_STRING(bytes);
  Py_XDECREF(bytes);
  return text;
}

// The code that stands for this one, and is kept alive for ever; null if there are too many.
PyCodeObject* kept_like(PyCodeObject* code) {
  auto& kept = codes().kept;
  const Content content{
      text_of(code->co_filename),
      text_of(code->co_qualname),
      code->co_firstlineno,
      std::string(
          PyBytes_AS_STRING(code->co_linetable),
          static_cast<size_t>(PyBytes_GET_SIZE(code->co_linetable)))};
  const auto found = kept.find(content);
  if (found != kept.end()) {
    return found->second;
  }
  if (kept.size() >= kMostKept) {
    return nullptr;
  }
  Py_INCREF(code);
  return kept.emplace(content, code).first->second;
}

std::vector<std::string>& library_folders() {
  static auto* folders = new std::vector<std::string>{"<frozen "};
  return *folders;
}

bool in_library(std::string_view file) {
  const auto& folders = library_folders();
  return std::any_of(folders.begin(), folders.end(), [&](const std::string& folder) {
    return file.substr(0, folder.size()) == folder;
  });
}

// First sight of a code object.
Known learn(PyCodeObject* code) {
  const WithGil gil;
  const bool is_own = is_interpreters_own(*code);
  const bool is_library = is_own || in_library(text_of(code->co_filename));
  Known known{is_library ? Origin::kLibrary : Origin::kUser};
  if (!is_library) {
    known.code = kept_like(code);
  }
  if (known.code != code && (is_own || !watch(code))) {
    Py_INCREF(code);  // its address stays its name
  }
  std::lock_guard lock(codes().mutex);
  codes().known.emplace(code, known);
  return known;
}

const Known& known_of(PyCodeObject* code) {
  struct Entry {
    const PyCodeObject* code = nullptr;
    uint64_t deaths = 0;
    Known known;
  };
  thread_local std::array<Entry, 256> seen;
  auto& entry = seen[(reinterpret_cast<uintptr_t>(code) >> 5) % seen.size()];
  const auto now = deaths.load(std::memory_order_acquire);
  if (C10_LIKELY(entry.code == code && entry.deaths == now)) {
    return entry.known;
  }
  Known known;
  {
    std::lock_guard lock(codes().mutex);
    if (auto found = codes().known.find(code); found != codes().known.end()) {
      known = found->second;
    }
  }
  if (known.origin == Origin::kUnknown) {
    known = learn(code);
  }
  entry = {code, now, known};
  return entry.known;
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

SourceLine source_line() {
  SourceLine result;
  PyThreadState* thread = Py_IsInitialized() ? PyGILState_GetThisThreadState() : nullptr;
  if (thread != nullptr) {
    // Only this thread changes its frames, and it is busy here.
    for (auto* frame = innermost_frame(*thread); frame != nullptr; frame = frame->previous) {
      if (!has_code(*frame)) {
        continue;
      }
      if (const auto& known = known_of(code_of(*frame)); known.origin == Origin::kUser) {
        result.code = known.code;
        result.instruction = instruction_of(*frame);
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

std::string text_of(const SourceLine& where) {
  if (where.node != nullptr) {
    return std::string("backward of ") + where.node;
  }
  if (where.code == nullptr || !Py_IsInitialized()) {
    return "unknown";
  }
  const WithGil gil;
  const int line = PyCode_Addr2Line(where.code, where.instruction);
  return text_of(where.code->co_filename) + ":" + std::to_string(line);
}

}  // namespace tiny
