#include "plan/compiler.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstring>

#include "plan/plan.h"

namespace tiny {
namespace {

constexpr int64_t kWorkOfThread = 1 << 16;  // less is not worth waking a thread for
constexpr size_t kMostLate = 1024;          // the oldest plans may be gone by then

Compiler*& the_compiler() {
  static auto* compiler = new Compiler;
  return compiler;
}

}  // namespace

Compiler& Compiler::get() {
  return *the_compiler();
}

void Compiler::renew() {
  auto* compiler = new Compiler;
  compiler->compile_now = get().compile_now;
  compiler->compile_portable = get().compile_portable;
  the_compiler() = compiler;
}

void Compiler::wake() {
  {
    std::lock_guard lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

void Compiler::hear(std::string trace) {
  std::lock_guard lock(mutex_);
  heard_.push_back(std::move(trace));
}

std::vector<std::string> Compiler::heard() {
  std::lock_guard lock(mutex_);
  return std::exchange(heard_, {});
}

void Compiler::offer(c10::DeviceIndex device, uint64_t plan, const std::function<Job()>& make) {
  {
    std::lock_guard lock(mutex_);
    if (jobs_.size() >= kMostWaiting) {
      late_.emplace(plan, device);
      if (late_.size() > kMostLate) {
        late_.erase(late_.begin());
      }
      has_late_ = true;
      ++postponed;
      return;
    }
    late_.erase({plan, device});
    has_late_ = !late_.empty();
  }
  auto job = make();
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

bool Compiler::is_due_again(c10::DeviceIndex device, uint64_t plan) {
  if (C10_LIKELY(!has_late_.load(std::memory_order_relaxed))) {
    return false;
  }
  std::lock_guard lock(mutex_);
  return jobs_.size() < kMostWaiting && late_.contains({plan, device});
}

std::optional<Job> Compiler::take(std::chrono::duration<double> patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [&] { return !jobs_.empty() || woken_; });
  std::erase_if(jobs_, [](const Job& job) { return job.known.expired(); });
  if (jobs_.empty()) {
    return std::nullopt;
  }
  const auto spent = [](const Job& job) {
    const auto plan = job.known.lock();
    return plan == nullptr ? 0 : plan->seconds.load(std::memory_order_relaxed);
  };
  const auto most = std::max_element(
      jobs_.begin(), jobs_.end(), [&](const Job& a, const Job& b) { return spent(a) < spent(b); });
  auto job = std::move(*most);
  jobs_.erase(most);
  return job;
}

void run_kernels(
    const Code& code,
    const std::vector<Kernel>& kernels,
    c10::ArrayRef<void*> buffers,
    char* arena) {
  c10::SmallVector<void*, 16> pointers;
  for (const auto& kernel : kernels) {
    pointers.clear();
    for (const auto buffer : kernel.buffers) {
      pointers.push_back(buffer >= 0 ? buffers[buffer] : arena + code.temporaries[-1 - buffer]);
    }
    at::RecordFunction profiled(at::RecordScope::FUNCTION);
    if (C10_UNLIKELY(profiled.isActive())) {
      profiled.before(kernel.name);
    }
    const auto threads = std::min<int64_t>(kernel.work / kWorkOfThread, kernel.parallel);
    if (threads < 2 || at::get_num_threads() < 2) {
      kernel.function(pointers.data(), 0, kernel.parallel);
    } else {
      const auto grain = (kernel.parallel + threads - 1) / threads;
      at::parallel_for(0, kernel.parallel, grain, [&](int64_t begin, int64_t end) {
        kernel.function(pointers.data(), begin, end);
      });
    }
  }
}

void copy_home(const Code& code, c10::ArrayRef<void*> buffers, char* arena) {
  for (size_t i = 0; i < code.copies.size(); ++i) {
    const auto [temporary, buffer] = code.copies[i];
    std::memcpy(buffers[buffer], arena + code.temporaries[temporary], code.copy_bytes[i]);
  }
}

void launch_kernels(
    const Region& region, c10::ArrayRef<void*> buffers, char* arena, c10::Device device) {
  const auto& code = *region.code;
  auto* stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
  c10::SmallVector<void*, 16> pointers, arguments;
  for (const auto& kernel : code.kernels) {
    at::RecordFunction profiled(at::RecordScope::FUNCTION);
    if (C10_UNLIKELY(profiled.isActive())) {
      profiled.before(kernel.name);
    }
    pointers.clear();
    arguments.clear();
    pointers.reserve(kernel.buffers.size());
    for (const auto buffer : kernel.buffers) {
      pointers.push_back(buffer >= 0 ? buffers[buffer] : arena + code.temporaries[-1 - buffer]);
      const bool is_number = buffer >= 0 && !region.buffers[buffer].is_slot;
      arguments.push_back(is_number ? pointers.back() : &pointers.back());
    }
    code.cuda->launch(kernel.name, kernel.launch, arguments.data(), stream);
  }
  for (size_t i = 0; i < code.copies.size(); ++i) {
    const auto [temporary, buffer] = code.copies[i];
    copy_on_gpu(buffers[buffer], arena + code.temporaries[temporary], code.copy_bytes[i], stream);
  }
}

}  // namespace tiny
