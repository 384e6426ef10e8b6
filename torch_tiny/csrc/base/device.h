// The tiny devices: which host memory is behind tiny:i, and which one is current.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <atomic>
#include <string>
#include <vector>

namespace tiny {

constexpr c10::DeviceType kTiny = c10::DeviceType::PrivateUse1;

// Names the memory behind tiny:0, tiny:1, ...: "cpu", "cuda:0", or a portable kind such as
// "webgpu". Called once, when imported.
void init_devices(const std::vector<std::string>& hosts);

c10::DeviceIndex device_count() noexcept;
// Where PyTorch's kernels run for this device: its own memory, or the CPU for a portable kind.
c10::Device host_device(c10::DeviceIndex index);
// Whether its memory is out of reach of PyTorch's kernels: see portable.h.
bool is_portable(c10::DeviceIndex index);
const std::string& device_name(c10::DeviceIndex index);

// Types that the hardware lacks; `advice` ends the error of whoever makes a tensor of one.
void set_missing_types(
    c10::DeviceIndex index, std::vector<c10::ScalarType> types, std::string advice);
bool has_type(c10::DeviceIndex index, c10::ScalarType type);
void check_type(c10::DeviceIndex index, c10::ScalarType type);

// The current device of this thread.
c10::DeviceIndex current_device() noexcept;
void set_device(c10::DeviceIndex index);
c10::DeviceIndex exchange_device(c10::DeviceIndex index);

// tiny without an index is the current tiny device.
c10::Device with_index(c10::Device device);

// Raises in a process that was forked after the device was used.
void check_usable();
// From now on a fork is too late; also wakes up the memory's own device.
void mark_used();
// Both of these, at next to no cost once done.
inline std::atomic<bool> is_ready{false};
void get_ready();
inline void ensure_ready() {
  if (C10_UNLIKELY(!is_ready.load(std::memory_order_relaxed))) {
    get_ready();
  }
}
bool in_bad_fork() noexcept;

}  // namespace tiny
