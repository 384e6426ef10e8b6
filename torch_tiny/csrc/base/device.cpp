#include "base/device.h"

#include <ATen/Context.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>

namespace tiny {
namespace {

struct Entry {
  c10::Device host{c10::kCPU};
  std::string name = "cpu";
  bool is_portable = false;
  std::vector<c10::ScalarType> missing;
  std::string advice;
};

std::vector<Entry>& hosts() {
  static auto* devices = new std::vector<Entry>(1);
  return *devices;
}

std::atomic<bool> used{false};
std::atomic<bool> bad_fork{false};
thread_local c10::DeviceIndex current = 0;

void after_fork_in_child() {
  if (used.load()) {
    bad_fork = true;
    is_ready = false;
  }
}

void check_index(c10::DeviceIndex index) {
  TORCH_CHECK(
      index >= 0 && index < device_count(),
      "tiny:",
      static_cast<int>(index),
      " does not exist: there ",
      device_count() == 1 ? "is 1 tiny device" : "are ",
      device_count() == 1 ? "" : std::to_string(device_count()) + " tiny devices",
      " (set by TORCH_TINY_DEVICES)");
}

}  // namespace

void init_devices(const std::vector<std::string>& names) {
  TORCH_CHECK(!used.load(), "the tiny devices cannot be changed after they were used");
  std::vector<Entry> devices;
  for (const auto& name : names) {
    const bool is_host = name == "cpu" || name.rfind("cuda", 0) == 0;
    devices.push_back({is_host ? c10::Device(name) : c10::Device(c10::kCPU), name, !is_host});
  }
  hosts() = std::move(devices);
  static const int registered = pthread_atfork(nullptr, nullptr, &after_fork_in_child);
  (void)registered;
}

c10::DeviceIndex device_count() noexcept {
  return static_cast<c10::DeviceIndex>(hosts().size());
}

c10::Device host_device(c10::DeviceIndex index) {
  check_index(index);
  return hosts()[index].host;
}

bool is_portable(c10::DeviceIndex index) {
  check_index(index);
  return hosts()[index].is_portable;
}

const std::string& device_name(c10::DeviceIndex index) {
  check_index(index);
  return hosts()[index].name;
}

void set_missing_types(
    c10::DeviceIndex index, std::vector<c10::ScalarType> types, std::string advice) {
  check_index(index);
  hosts()[index].missing = std::move(types);
  hosts()[index].advice = std::move(advice);
}

bool has_type(c10::DeviceIndex index, c10::ScalarType type) {
  const auto& missing = hosts()[index].missing;
  return C10_LIKELY(missing.empty()) ||
      std::find(missing.begin(), missing.end(), type) == missing.end();
}

void check_type(c10::DeviceIndex index, c10::ScalarType type) {
  const auto& entry = hosts()[index];
  TORCH_CHECK_TYPE(
      has_type(index, type),
      "tiny:",
      static_cast<int>(index),
      " (",
      entry.name,
      ") has no ",
      c10::getDtypeNames(type).first,
      ": ",
      entry.advice);
}

c10::DeviceIndex current_device() noexcept {
  return current;
}

void set_device(c10::DeviceIndex index) {
  check_index(index);
  current = index;
}

c10::DeviceIndex exchange_device(c10::DeviceIndex index) {
  const auto previous = current;
  if (index >= 0) {
    set_device(index);
  }
  return previous;
}

c10::Device with_index(c10::Device device) {
  if (device.has_index()) {
    check_index(device.index());
    return device;
  }
  return {kTiny, current};
}

void check_usable() {
  TORCH_CHECK(
      !bad_fork.load(std::memory_order_relaxed),
      "Cannot use the tiny device in a process that was forked after the device was used. "
      "Use the 'spawn' start method of multiprocessing, or fork before the first tiny tensor.");
}

void mark_used() {
  if (C10_UNLIKELY(!used.load(std::memory_order_relaxed))) {
    for (const auto& [host, name, portable, missing, advice] : hosts()) {
      if (host.type() != c10::kCPU) {
        at::globalContext().lazyInitDevice(host.type());
      }
    }
    used = true;
  }
}

void get_ready() {
  check_usable();
  mark_used();
  is_ready = true;
}

bool in_bad_fork() noexcept {
  return bad_fork;
}

}  // namespace tiny
