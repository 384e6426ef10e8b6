// What PyTorch asks of an accelerator: current device, streams, events, and hooks.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Event.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>

#include "memory/allocator.h"
#include "memory/kind.h"
#include "random/generator.h"
#include "record/resize.h"
#include "run/queue.h"

namespace tiny {
namespace {

using Clock = std::chrono::steady_clock;

// Recording an event runs the work before it, so its time is the time that work was done.
struct TinyEvent {
  bool recorded = false;
  Clock::time_point time;
  std::unique_ptr<c10::Event> host;  // where the memory's device works on its own
};

class TinyGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override {
    return kTiny;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kTiny, exchange_device(device.index())};
  }
  c10::Device getDevice() const override {
    return {kTiny, current_device()};
  }
  void setDevice(c10::Device device) const override {
    set_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < device_count()) {
      exchange_device(device.index());
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return device_count();
  }

  // Each device has one queue that works in order; every stream stands for it.
  c10::Stream getStream(c10::Device device) const override {
    const auto index = with_index(device).index();
    return c10::Stream(c10::Stream::UNSAFE, {kTiny, index}, current_stream(index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, with_index(device));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high*/ = false) const override {
    return getNewStream(device);
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/ = 0) const override {
    static std::atomic<c10::StreamId> next{1};
    return c10::Stream(c10::Stream::UNSAFE, with_index(device), next.fetch_add(1));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto index = stream.device_index();
    const auto previous = getStream({kTiny, index});
    current_stream(index) = stream.id();
    return previous;
  }
  bool queryStream(const c10::Stream& stream) const override {
    if (!Queue::of(stream.device_index()).is_idle()) {
      return false;
    }
    const auto host = host_device(stream.device_index());
    if (host.type() == c10::kCPU) {
      return true;
    }
    const c10::impl::VirtualGuardImpl guard(host.type());
    return guard.queryStream(guard.getStream(host));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    synchronizeDevice(stream.device_index());
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    run_trace(index, "synchronize");
    memory_of(index).wait(index);
  }

  void record(
      void** event,
      const c10::Stream& stream,
      const c10::DeviceIndex /*index*/,
      const c10::EventFlag flag) const override {
    if (*event == nullptr) {
      *event = new TinyEvent;
    }
    auto& ours = *static_cast<TinyEvent*>(*event);
    run_trace(stream.device_index(), "event");
    const auto host = host_device(stream.device_index());
    if (host.type() != c10::kCPU) {
      if (!ours.host) {
        ours.host = std::make_unique<c10::Event>(host.type(), flag);
      }
      ours.host->record(c10::impl::VirtualGuardImpl(host.type()).getStream(host));
    }
    ours.recorded = true;
    ours.time = Clock::now();
  }
  void block(void* event, const c10::Stream& stream) const override {
    auto* ours = static_cast<TinyEvent*>(event);
    if (ours != nullptr && ours->host) {
      const auto host = host_device(stream.device_index());
      if (host.type() == ours->host->device_type()) {
        ours->host->block(c10::impl::VirtualGuardImpl(host.type()).getStream(host));
      } else {
        ours->host->synchronize();
      }
    }
  }
  bool queryEvent(void* event) const override {
    auto* ours = static_cast<TinyEvent*>(event);
    return ours == nullptr || !ours->host || ours->host->query();
  }
  void synchronizeEvent(void* event) const override {
    auto* ours = static_cast<TinyEvent*>(event);
    if (ours != nullptr && ours->host) {
      ours->host->synchronize();
    }
  }
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex /*index*/) const override {
    auto* first = static_cast<TinyEvent*>(begin);
    auto* second = static_cast<TinyEvent*>(end);
    TORCH_CHECK(
        first != nullptr && second != nullptr && first->recorded && second->recorded,
        "Both events must be recorded before calculating elapsed time.");
    if (first->host && second->host) {
      return first->host->elapsedTime(*second->host);
    }
    return std::chrono::duration<double, std::milli>(second->time - first->time).count();
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*index*/) const noexcept override {
    delete static_cast<TinyEvent*>(event);
  }
  void recordDataPtrOnStream(
      const c10::DataPtr& /*data*/, const c10::Stream& /*stream*/) const override {}

 private:
  static c10::StreamId& current_stream(c10::DeviceIndex index) {
    thread_local std::vector<c10::StreamId> streams(device_count(), 0);
    return streams.at(index);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, TinyGuard)

struct TinyHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return device_count() > 0;
  }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return device_count();
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    set_device(index);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current_device();
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return exchange_device(index);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchange_device(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index = -1) const override {
    return make_generator(index);
  }
  at::Device getDeviceFromPtr(void* /*data*/) const override {
    return {kTiny, current_device()};
  }
  bool isPinnedPtr(const void* data) const override {
    return is_pinned(data);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return pinned_allocator();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_storage(storage, nbytes);
  }
};

const bool hooks_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new TinyHooks);
  return true;
}();

}  // namespace
}  // namespace tiny
