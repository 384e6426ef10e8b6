#include "generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <mutex>
#include <vector>

#include "run.h"

namespace tiny {
namespace {

at::Generator new_host_generator(c10::DeviceIndex index) {
  mark_used();
  const auto host = host_device(index);
  if (host.type() == c10::kCPU) {
    return at::detail::createCPUGenerator();
  }
  return at::globalContext()
      .getAcceleratorHooksInterface(host.type())
      .getNewGenerator(host.index());
}

// Calls recorded earlier draw their numbers before the state is read or changed.
class TinyGenerator final : public c10::GeneratorImpl {
 public:
  TinyGenerator(c10::DeviceIndex index, at::Generator host)
      : c10::GeneratorImpl(
            c10::Device(kTiny, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host_(std::move(host)) {}

  void set_current_seed(uint64_t seed) override {
    settled().set_current_seed(seed);
  }
  void set_offset(uint64_t offset) override {
    settled().unsafeGetGeneratorImpl()->set_offset(offset);
  }
  uint64_t get_offset() const override {
    return settled().unsafeGetGeneratorImpl()->get_offset();
  }
  uint64_t current_seed() const override {
    return host_.current_seed();
  }
  uint64_t seed() override {
    return settled().seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    settled().unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return settled().unsafeGetGeneratorImpl()->get_state();
  }
  const at::Generator& host() const {
    return host_;
  }

 private:
  const at::Generator& settled() const {
    run_trace(device().index(), "generator");
    return host_;
  }
  at::Generator& settled() {
    run_trace(device().index(), "generator");
    return host_;
  }
  TinyGenerator* clone_impl() const override {
    return new TinyGenerator(device().index(), settled().clone());
  }

  at::Generator host_;
};

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex index) {
  static auto* mutex = new std::mutex;
  static auto* generators = new std::vector<at::Generator>;
  std::lock_guard lock(*mutex);
  while (generators->size() < static_cast<size_t>(device_count())) {
    generators->reserve(device_count());  // references to elements are handed out
    generators->push_back(make_generator(static_cast<c10::DeviceIndex>(generators->size())));
  }
  return generators->at(index < 0 ? current_device() : index);
}

at::Generator make_generator(c10::DeviceIndex index) {
  if (index < 0) {
    index = current_device();
  }
  return at::make_generator<TinyGenerator>(index, new_host_generator(index));
}

at::Generator host_generator(c10::DeviceIndex index) {
  return host_generator(default_generator(index));
}

at::Generator host_generator(const at::Generator& generator) {
  TORCH_CHECK(
      generator.device().type() == kTiny,
      "Expected a 'tiny' device type for generator but found '",
      generator.device().type(),
      "'");
  return static_cast<TinyGenerator*>(generator.unsafeGetGeneratorImpl())->host();
}

}  // namespace tiny
