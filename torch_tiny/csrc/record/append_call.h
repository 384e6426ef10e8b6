// Adding a call to the trace of its device: the inner part of recording.
#pragma once

#include <chrono>

#include "run/recorder.h"

namespace tiny {

class RecordingTime {
 public:
  explicit RecordingTime(const Recorder& recorder) {
    sampled_ = recorder.ticks.load(std::memory_order_relaxed) % kTimeOneIn == 0;
    if (C10_UNLIKELY(sampled_)) {
      begin_ = std::chrono::steady_clock::now();
    }
  }
  void stop(const Recording& recording) const {
    auto& ticks = recording.recorder().ticks;
    ticks.store(ticks.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (C10_UNLIKELY(sampled_)) {
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin_;
      recording->metrics.seconds_recording += elapsed.count() * kTimeOneIn;
    }
  }

 private:
  static constexpr uint32_t kTimeOneIn = 16;  // by samples: a clock costs as much as recording

  bool sampled_;
  std::chrono::steady_clock::time_point begin_;
};

// `results` makes the fresh results with fresh_result; the values of the call are in the trace.
template <typename Results>
void append_call(
    const Recording& recording,
    const Signature& signature,
    c10::ArrayRef<const at::Tensor*> tensors,
    size_t first_value,
    const SourceLine& place,
    const Results& results) {
  auto& trace = recording->trace;
  const auto first_use = static_cast<uint32_t>(trace.uses.size());
  for (const auto* tensor : tensors) {
    trace.uses.push_back(
        {trace.slot_of(TinyStorage::of(*tensor)), tensor->unsafeGetTensorImpl()->storage_offset()});
  }
  const auto first_fresh = static_cast<uint32_t>(trace.slots.size());
  results();
  trace.calls.push_back(
      {&signature, first_use, static_cast<uint32_t>(first_value), first_fresh, place});
  trace.bytes += signature.fresh_bytes;
  ++recording->metrics.calls;
  signature.op->calls.fetch_add(1, std::memory_order_relaxed);
  const auto& limits = recording->limits;
  if (C10_UNLIKELY(trace.calls.size() >= limits.calls || trace.bytes >= limits.bytes)) {
    recording.recorder().is_full.store(true, std::memory_order_relaxed);
  }
}

// The next fresh result of the call that is being noted.
inline at::Tensor fresh_result(
    const Recording& recording, const Result& result, c10::DeviceIndex device) {
  if (C10_UNLIKELY(!result.defined)) {
    recording->trace.add_fresh(nullptr);
    return {};
  }
  const auto& spec = result.spec;
  auto tensor =
      make_tensor(device, result.nbytes, spec.sizes, spec.strides, result.offset, spec.dtype);
  if (C10_UNLIKELY(spec.conj)) {
    tensor._set_conj(true);
  }
  if (C10_UNLIKELY(spec.neg)) {
    tensor._set_neg(true);
  }
  recording->trace.add_fresh(
      c10::intrusive_ptr<TinyStorage>::reclaim_copy(&TinyStorage::of(tensor)));
  return tensor;
}

}  // namespace tiny
