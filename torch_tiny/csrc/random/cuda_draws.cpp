#include "random/cuda_draws.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>

#include "memory/cuda_driver.h"

namespace tiny {
namespace {

constexpr int64_t kThreads = 256;
constexpr int64_t kMostBlocks = 4096;

struct Kernels {
  std::mutex mutex;
  std::function<std::string(c10::DeviceIndex)> machine_code;
  std::map<c10::DeviceIndex, std::unique_ptr<CudaLibrary>> libraries;
};

Kernels& kernels() {
  static auto* known = new Kernels;
  return *known;
}

CudaLibrary& library_of(c10::DeviceIndex gpu) {
  {
    std::lock_guard lock(kernels().mutex);
    if (const auto found = kernels().libraries.find(gpu); found != kernels().libraries.end()) {
      return *found->second;
    }
  }
  // Not under the lock: another thread may hold the GIL, which this takes, and wait for the lock.
  auto library = std::make_unique<CudaLibrary>(kernels().machine_code(gpu));
  std::lock_guard lock(kernels().mutex);
  return *kernels().libraries.try_emplace(gpu, std::move(library)).first->second;
}

}  // namespace

void set_random_kernels(std::function<std::string(c10::DeviceIndex)> machine_code) {
  kernels().machine_code = std::move(machine_code);
}

void draw_on_gpu(
    const std::string& kernel,
    at::ScalarType computed,
    const at::Tensor& out,
    const Draw& draw,
    const DrawNumbers& numbers) {
  if (out.numel() == 0) {
    return;
  }
  const bool is_direct = out.is_contiguous() && out.scalar_type() == computed;
  const auto dense = is_direct ? out : at::empty(out.sizes(), out.options().dtype(computed));
  void* data = dense.mutable_data_ptr();
  const void* chances = numbers.chances.defined() ? numbers.chances.const_data_ptr() : nullptr;
  int64_t count = dense.numel();
  auto [seed, offset] = draw;
  auto given = numbers;
  std::array<void*, 10> arguments{
      &data,
      &chances,
      &count,
      &seed,
      &offset,
      &given.a,
      &given.b,
      &given.range,
      &given.first,
      &given.bits};
  const auto device = out.device();
  CudaLaunch how;
  how.block[0] = kThreads;
  how.grid[0] = static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, kMostBlocks));
  auto* stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
  library_of(device.index()).launch("draw_" + kernel, how, arguments.data(), stream);
  if (!is_direct) {
    out.copy_(dense);
  }
}

}  // namespace tiny
