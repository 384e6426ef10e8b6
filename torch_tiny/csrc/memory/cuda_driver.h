// The few functions of the CUDA driver that launch compiled kernels. Found at run time, so that
// the build needs no CUDA and the extension loads where there is none.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <mutex>
#include <string>

namespace tiny {

struct CudaLaunch {
  std::array<unsigned, 3> grid{1, 1, 1};
  std::array<unsigned, 3> block{1, 1, 1};
  unsigned shared = 0;  // bytes
};

// Compiled code, loaded into PyTorch's context when it is first launched.
class CudaLibrary {
 public:
  explicit CudaLibrary(std::string code) : code_(std::move(code)) {}
  ~CudaLibrary();
  CudaLibrary(const CudaLibrary&) = delete;
  CudaLibrary& operator=(const CudaLibrary&) = delete;

  // Loads it if it is not; if that fails, warns, and says so from then on.
  bool is_usable();

  // Launches on a stream of the current device; `arguments` point to the arguments.
  void launch(const std::string& name, const CudaLaunch& how, void** arguments, void* stream);

 private:
  void load();

  std::string code_;
  std::mutex mutex_;
  void* module_ = nullptr;
  bool is_broken_ = false;
  std::map<std::string, void*> functions_;
};

// Launches an instantiated CUDA graph.
void launch_graph(void* graph, void* stream);

void copy_on_gpu(void* to, const void* from, size_t bytes, void* stream);

}  // namespace tiny
