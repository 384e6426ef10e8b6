#include "random/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Utils.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <mutex>
#include <vector>

namespace tiny {
namespace {

RandomSource chosen = RandomSource::kDefault;
void (*run_before)(c10::DeviceIndex) = nullptr;

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

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// Calls recorded earlier draw their numbers before the state is read or changed.
class HostGenerator final : public c10::GeneratorImpl {
  // PyTorch calls with our mutex locked. Whoever runs a trace lets go of the GIL, and another
  // thread that has it may come to wait for the mutex: so it is not held meanwhile.
  void run_recorded() const {
    struct Unlocked {
      std::mutex& mutex;
      const bool was_locked = !mutex.try_lock();
      explicit Unlocked(std::mutex& of) : mutex(of) {
        mutex.unlock();
      }
      ~Unlocked() {
        if (was_locked) {
          mutex.lock();
        }
      }
    };
    const Unlocked unlocked(const_cast<std::mutex&>(mutex_));
    run_before(device().index());
  }

  // Another thread may go on drawing: kernels do so under the lock of the generator behind.
  template <typename Body>
  auto settled(const Body& body) const {
    run_recorded();
    return locked_host(body);
  }
  template <typename Body>
  auto locked_host(const Body& body) const {
    std::lock_guard lock(host_.unsafeGetGeneratorImpl()->mutex_);
    return body(*host_.unsafeGetGeneratorImpl());
  }

 public:
  HostGenerator(c10::DeviceIndex index, at::Generator host)
      : c10::GeneratorImpl(c10::Device(kTiny, index), kKeys), host_(std::move(host)) {}

  void set_current_seed(uint64_t seed) override {
    settled([&](auto& host) { host.set_current_seed(seed); });
  }
  void set_offset(uint64_t offset) override {
    settled([&](auto& host) { host.set_offset(offset); });
  }
  uint64_t get_offset() const override {
    run_before(device().index());  // PyTorch does not lock before it asks this
    return locked_host([](auto& host) { return host.get_offset(); });
  }
  uint64_t current_seed() const override {
    return host_.current_seed();
  }
  uint64_t seed() override {
    return settled([](auto& host) { return host.seed(); });
  }
  void set_state(const c10::TensorImpl& state) override {
    settled([&](auto& host) { host.set_state(state); });
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return settled([](auto& host) { return host.get_state(); });
  }
  const at::Generator& host() const {
    return host_;
  }

 private:
  HostGenerator* clone_impl() const override {
    const auto host = settled([](auto& generator) { return generator.clone(); });
    return new HostGenerator(device().index(), at::Generator(host));
  }

  at::Generator host_;
};

// Each call takes the next offset when it is recorded, so nothing has to run for the state to be
// known. A state is the seed and the offset, eight bytes each, the lowest first.
class PortableGenerator final : public c10::GeneratorImpl {
 public:
  explicit PortableGenerator(c10::DeviceIndex index, Draw next = {c10::default_rng_seed_val, 0})
      : c10::GeneratorImpl(c10::Device(kTiny, index), kKeys), next_(next) {}

  Draw take() {
    std::lock_guard lock(mutex_);
    return {next_.seed, next_.offset++};
  }
  void set_current_seed(uint64_t seed) override {
    next_ = {seed, 0};
  }
  void set_offset(uint64_t offset) override {
    next_.offset = offset;
  }
  uint64_t get_offset() const override {
    return next_.offset;
  }
  uint64_t current_seed() const override {
    return next_.seed;
  }
  uint64_t seed() override {
    next_ = {c10::detail::getNonDeterministicRandom(), 0};
    return next_.seed;
  }
  void set_state(const c10::TensorImpl& state) override {
    at::detail::check_rng_state(state);
    TORCH_CHECK(
        state.numel() == sizeof(State),
        "the state of a portable generator has ",
        sizeof(State),
        " bytes, not ",
        state.numel());
    State words;
    std::memcpy(words.data(), state.data(), sizeof words);
    next_ = {words[0], words[1]};
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::detail::empty_cpu({sizeof(State)}, c10::kByte);
    const State words{next_.seed, next_.offset};
    std::memcpy(state.mutable_data_ptr(), words.data(), sizeof words);
    return state.getIntrusivePtr();
  }

 private:
  using State = std::array<uint64_t, 2>;

  PortableGenerator* clone_impl() const override {
    return new PortableGenerator(device().index(), next_);
  }

  Draw next_;
};

}  // namespace

void choose_source(RandomSource source) {
  chosen = source;
}

void run_before_states(void (*run)(c10::DeviceIndex)) {
  run_before = run;
}

bool has_portable_numbers(c10::DeviceIndex index) {
  return chosen == RandomSource::kPortable || is_portable(index) ||
      (chosen == RandomSource::kDefault && host_device(index).type() != c10::kCPU);
}

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
  if (has_portable_numbers(index)) {
    return at::make_generator<PortableGenerator>(index);
  }
  return at::make_generator<HostGenerator>(index, new_host_generator(index));
}

c10::IValue numbers_of(c10::DeviceIndex index) {
  return numbers_of(default_generator(index));
}

c10::IValue numbers_of(const at::Generator& generator) {
  TORCH_CHECK(
      generator.device().type() == kTiny,
      "Expected a 'tiny' device type for generator but found '",
      generator.device().type(),
      "'");
  auto* impl = generator.unsafeGetGeneratorImpl();
  if (auto* portable = dynamic_cast<PortableGenerator*>(impl)) {
    const auto draw = portable->take();
    return c10::List<int64_t>({static_cast<int64_t>(draw.seed), static_cast<int64_t>(draw.offset)});
  }
  return static_cast<HostGenerator*>(impl)->host();
}

Draw draw_of(const c10::IValue& numbers) {
  const auto words = numbers.toIntList();
  return {static_cast<uint64_t>(words.get(0)), static_cast<uint64_t>(words.get(1))};
}

at::Generator host_generator(c10::DeviceIndex index, const Draw& draw) {
  const auto words = philox::words(draw, 0);
  auto generator = new_host_generator(index);
  generator.set_current_seed(philox::wide(words[1], words[0]));
  return generator;
}

at::Generator host_generator(c10::DeviceIndex index) {
  return static_cast<HostGenerator*>(default_generator(index).unsafeGetGeneratorImpl())->host();
}

}  // namespace tiny
