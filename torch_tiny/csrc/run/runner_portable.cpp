// Running a region of a portable device.
#include <ATen/record_function.h>

#include <algorithm>

#include "run/runner.h"

namespace tiny {

// What it writes comes back in new buffers, so that a call that would raise leaves all as it was.
void Runner::run_portable(const Region& region) {
  if (has_failed(region)) {
    return run_calls(region);
  }
  try {
    at::RecordFunction profiled(at::RecordScope::FUNCTION);
    if (C10_UNLIKELY(profiled.isActive())) {
      profiled.before("torch_tiny::" + region.name);
    }
    std::vector<Buffer> buffers;
    std::vector<std::string> numbers;
    for (const auto& buffer : region.buffers) {
      if (buffer.is_slot) {
        auto& storage = *trace_.slots[buffer.slot];
        buffers.push_back(buffer.is_read ? storage.buffer() : storage.home());
      } else {
        numbers.emplace_back(number(buffer));
      }
    }
    const auto written =
        portable_functions().run(device_, region.portable->number, buffers, numbers);
    if (!written.has_value()) {
      is_raising_ = true;
      run_calls(region);
      is_raising_ = false;
      return;
    }
    auto next = written->begin();
    for (const auto& buffer : region.buffers) {
      if (buffer.is_slot && buffer.is_written) {
        trace_.slots[buffer.slot]->adopt_buffer(*next++);
      }
    }
  } catch (DeviceMemoryError& error) {
    run_on_host(region, current_failure(), error.nbytes);
  } catch (c10::Error& error) {
    error.add_context(
        "in " + region.name + ", recorded at " + text_of(trace_.calls[region.calls.front()].where));
    run_on_host(region, current_failure(), SIZE_MAX);
  } catch (...) {
    run_on_host(region, current_failure(), SIZE_MAX);
  }
}

// The device has failed, which is raised. Calls of the region that have nothing to do with that
// must have happened all the same: only those that make or write this much memory have not.
void Runner::run_on_host(const Region& region, const std::exception_ptr& why, size_t nbytes) {
  failure = failure == nullptr ? why : failure;
  is_raising_ = true;
  for (const auto index : region.calls) {
    const auto& call = trace_.calls[index];
    const auto& results = call.signature->results;
    bool is_cause = std::any_of(results.begin(), results.end(), [&](const Result& result) {
      return result.defined && result.nbytes >= nbytes;
    });
    const auto& writes = call.signature->writes;
    for (size_t i = 0; i < writes.size(); ++i) {
      auto& storage = *trace_.slots[trace_.uses[call.first_use + i].slot];
      if (writes[i] && storage.nbytes() >= nbytes) {
        storage.fail_if_empty(why);
        is_cause = true;
      }
    }
    is_cause ? fail(call, why) : run_one(call);
  }
  is_raising_ = false;
}

}  // namespace tiny
