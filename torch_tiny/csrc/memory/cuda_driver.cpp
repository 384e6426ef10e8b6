#include "memory/cuda_driver.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstdint>

#include "base/device.h"

namespace tiny {
namespace {

void* symbol(const char* name) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(driver != nullptr, "the CUDA driver does not load: ", dlerror());
  void* found = dlsym(driver, name);
  TORCH_CHECK(found != nullptr, "the CUDA driver has no ", name);
  return found;
}

void check(int result, const char* what) {
  if (result == 0) {
    return;
  }
  static auto* describe = reinterpret_cast<int (*)(int, const char**)>(symbol("cuGetErrorString"));
  const char* text = nullptr;
  describe(result, &text);
  TORCH_CHECK(false, "CUDA: ", what, ": ", text == nullptr ? "unknown error" : text);
}

// A thread that has not used CUDA's runtime yet has no context; its device is the first one then.
void use_pytorch_context() {
  thread_local bool is_current = false;
  if (C10_LIKELY(is_current)) {
    return;
  }
  static auto* get = reinterpret_cast<int (*)(void**)>(symbol("cuCtxGetCurrent"));
  static auto* retain = reinterpret_cast<int (*)(void**, int)>(symbol("cuDevicePrimaryCtxRetain"));
  static auto* set = reinterpret_cast<int (*)(void*)>(symbol("cuCtxSetCurrent"));
  void* context = nullptr;
  check(get(&context), "asking for the context");
  if (context == nullptr) {
    check(retain(&context, 0), "taking PyTorch's context");
    check(set(context), "entering PyTorch's context");
  }
  is_current = true;
}

}  // namespace

// Waits for kernels that still run. Where it fails the process is ending, or was forked.
CudaLibrary::~CudaLibrary() {
  if (module_ != nullptr && !in_bad_fork()) {
    try {
      static auto* unload = reinterpret_cast<int (*)(void*)>(symbol("cuModuleUnload"));
      use_pytorch_context();
      unload(module_);
    } catch (...) {
      return;
    }
  }
}

void CudaLibrary::load() {
  static auto* load = reinterpret_cast<int (*)(void**, const void*)>(symbol("cuModuleLoadData"));
  if (module_ == nullptr) {
    use_pytorch_context();
    check(load(&module_, code_.data()), "loading compiled kernels");
  }
}

bool CudaLibrary::is_usable() {
  std::lock_guard lock(mutex_);
  if (C10_UNLIKELY(module_ == nullptr && !is_broken_)) {
    try {
      load();
    } catch (const c10::Error& error) {
      is_broken_ = true;
      TORCH_WARN(error.what_without_backtrace(), "; PyTorch's operators run instead");
    }
  }
  return !is_broken_;
}

void CudaLibrary::launch(
    const std::string& name, const CudaLaunch& how, void** arguments, void* stream) {
  static auto* get =
      reinterpret_cast<int (*)(void**, void*, const char*)>(symbol("cuModuleGetFunction"));
  static auto* launch_kernel = reinterpret_cast<int (*)(
      void*,
      unsigned,
      unsigned,
      unsigned,
      unsigned,
      unsigned,
      unsigned,
      unsigned,
      void*,
      void**,
      void**)>(symbol("cuLaunchKernel"));
  use_pytorch_context();
  void* function = nullptr;
  {
    std::lock_guard lock(mutex_);
    load();
    auto& known = functions_[name];
    if (known == nullptr) {
      check(get(&known, module_, name.c_str()), "finding a compiled kernel");
    }
    function = known;
  }
  check(
      launch_kernel(
          function,
          how.grid[0],
          how.grid[1],
          how.grid[2],
          how.block[0],
          how.block[1],
          how.block[2],
          how.shared,
          stream,
          arguments,
          nullptr),
      "launching a compiled kernel");
}

void launch_graph(void* graph, void* stream) {
  static auto* launch = reinterpret_cast<int (*)(void*, void*)>(symbol("cuGraphLaunch"));
  use_pytorch_context();
  check(launch(graph, stream), "launching a graph");
}

void copy_on_gpu(void* to, const void* from, size_t bytes, void* stream) {
  static auto* copy =
      reinterpret_cast<int (*)(uint64_t, uint64_t, size_t, void*)>(symbol("cuMemcpyDtoDAsync_v2"));
  use_pytorch_context();
  check(
      copy(reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from), bytes, stream),
      "copying");
}

}  // namespace tiny
