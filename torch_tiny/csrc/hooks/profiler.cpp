// torch.autograd.profiler.profile(use_device="tiny"): when the host comes to an operator and leaves
// it. One that is recorded takes next to nothing; those of the trace are timed where it runs.
#include <torch/csrc/profiler/stubs/base.h>

#include <chrono>

#include "base/device.h"
#include "memory/kind.h"
#include "run/queue.h"

namespace tiny {
namespace {

using Clock = std::chrono::steady_clock;
using torch::profiler::impl::ProfilerVoidEventStub;

struct TinyProfiler final : torch::profiler::impl::ProfilerStubs {
  void record(
      c10::DeviceIndex* device, ProfilerVoidEventStub* event, int64_t* cpu_ns) const override {
    const auto now = Clock::now();
    if (device != nullptr) {
      *device = current_device();
    }
    if (cpu_ns != nullptr) {
      *cpu_ns = std::chrono::nanoseconds(now.time_since_epoch()).count();
    }
    *event = std::make_shared<Clock::time_point>(now);
  }
  float elapsed(
      const ProfilerVoidEventStub* first, const ProfilerVoidEventStub* second) const override {
    const auto time = [](const ProfilerVoidEventStub* event) {
      return *static_cast<Clock::time_point*>(event->get());
    };
    return std::chrono::duration<float, std::micro>(time(second) - time(first)).count();
  }
  void mark(const char* /*name*/) const override {}
  void rangePush(const char* /*name*/) const override {}
  void rangePop() const override {}
  bool enabled() const override {
    return true;
  }
  void onEachDevice(std::function<void(int)> visit) const override {
    for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
      visit(index);
    }
  }
  void synchronize() const override {
    for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
      run_trace(index, "synchronize");
      memory_of(index).wait(index);
    }
  }
};

const bool registered = [] {
  torch::profiler::impl::registerPrivateUse1Methods(new TinyProfiler);
  return true;
}();

}  // namespace
}  // namespace tiny
