#include "run/runner.h"

#include <ATen/Context.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/record_function.h>

#include <bit>

#include "base/mode.h"
#include "base/troubles.h"
#include "core/aten_call.h"
#include "memory/allocator.h"
#include "memory/kind.h"
#include "plan/compiler.h"
#include "random/generator.h"

namespace tiny {
namespace {

using Engine = Choice::Engine;

bool has_layout(const at::Tensor& tensor, const Result& expected) {
  return tensor.sizes() == expected.spec.sizes && tensor.strides() == expected.spec.strides &&
      tensor.storage_offset() == expected.offset && tensor.scalar_type() == expected.spec.dtype &&
      tensor.is_conj() == expected.spec.conj && tensor.is_neg() == expected.spec.neg;
}

at::Tensor with_layout(const at::Tensor& tensor, const Result& expected, c10::Device host) {
  auto memory = at::empty_strided(
      {static_cast<int64_t>(expected.nbytes)}, {1}, at::device(host).dtype(at::kByte));
  auto result = host_tensor(
      memory.storage(),
      expected.spec.sizes,
      expected.spec.strides,
      expected.offset,
      expected.spec.dtype,
      false,
      false);
  result.copy_(tensor);
  return result;
}

// Tells in the error which operator failed, and where it was recorded.
void add_context(c10::Error& error, const Operator& op, const std::string& place) {
  error.add_context("raised by " + op.name + ", recorded at " + place);
}

// Kernels on a GPU read 16 bytes at once, where the compiler knows that offsets allow it; memory
// that came from outside may lie anywhere.
bool are_aligned(const Region& region, c10::ArrayRef<void*> buffers) {
  for (size_t i = 0; i < region.buffers.size(); ++i) {
    const auto& buffer = region.buffers[i];
    if (buffer.is_slot && (reinterpret_cast<uintptr_t>(buffers[i]) - buffer.offset) % 16 != 0) {
      return false;
    }
  }
  return true;
}

// Whether a call only brings a CPU tensor to the device.
bool is_transfer(const Signature& signature) {
  return signature.op->takes_cpu_tensors && signature.tokens.size() > 1 &&
      signature.tokens[1].kind == Token::Kind::kValue;
}

}  // namespace

Runner::Runner(Trace& trace, const Plan& plan, c10::DeviceIndex device)
    : trace_(trace),
      plan_(plan),
      device_(device),
      host_(host_device(device)),
      is_portable_(is_portable(device)),
      threads_(host_.is_cpu() ? at::get_num_threads() : 0),
      states_(trace.slots.size()) {}

void Runner::run() {
  has_two_ways_ = host_.is_cpu() && !is_portable_ && Product::may_choose();
  if (plan_.compiled != nullptr) {
    return run_steps(*plan_.compiled);
  }
  for (size_t i = 0; i < trace_.calls.size(); ++i) {
    // A GPU would be given more to launch.
    if (trace_.calls[i].signature->op->is_listwise && host_.is_cpu() && !is_portable_) {
      if (const auto end = lists_end(i); end > i + 1) {
        run_lists(i, end);
        i = end - 1;
        continue;
      }
    }
    run_one(trace_.calls[i]);
    for (auto k = plan_.release_begin[i]; k < plan_.release_begin[i + 1]; ++k) {
      release(plan_.release[k]);
    }
  }
}

void Runner::place(uint32_t slot, c10::Storage memory) {
  states_[slot].memory = std::move(memory);
}

void Runner::fail_all(const std::string& why) {
  const auto error = std::make_exception_ptr(
      c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, why));
  for (const auto& call : trace_.calls) {
    const auto& writes = call.signature->writes;
    for (size_t i = 0; i < writes.size(); ++i) {
      auto& storage = trace_.slots[trace_.uses[call.first_use + i].slot];
      if (writes[i] && storage) {
        storage->fail_if_empty(error);
      }
    }
    fail(call, error);
  }
}

void Runner::run_steps(Compiled& compiled) {
  for (const auto& step : compiled.steps) {
    if (step.call >= 0) {
      run_one(trace_.calls[step.call]);
    } else {
      run_region(compiled.regions[step.region]);
    }
    for (const auto slot : step.release) {
      release(slot);
    }
  }
}

void Runner::run_one(const Call& call, Part part) {
  if (auto failed = part.is_whole() || failure != nullptr ? failed_input(call) : nullptr) {
    return fail(call, failed);
  }
  try {
    run_call(call, part);
  } catch (c10::Error& error) {
    add_context(error, *call.signature->op, text_of(call.where));
    fail(call, current_failure());
  } catch (...) {
    fail(call, current_failure());
  }
}

void Runner::release(uint32_t slot) {
  states_[slot] = {};
  trace_.slots[slot].reset();
}

// A region whose inputs failed runs call by call, so that each result knows why it failed. Who asks
// for deterministic algorithms gets one engine, whatever was measured.
void Runner::run_region(Region& region) {
  if (region.portable != nullptr) {
    return run_portable(region);
  }
  const bool must_compile = mode() == Mode::kUop;
  const bool is_pinned = at::globalContext().deterministicAlgorithms() && !must_compile;
  auto& choice = region.code->choice;
  const auto engine = has_failed(region) || is_pinned ? Engine::kAten
      : must_compile                                  ? Engine::kUop
                                                      : choice.next(threads_);
  const auto run = [&] { engine == Engine::kAten ? run_calls(region) : run_kernels_of(region); };
  if (choice.decided() || must_compile || is_pinned) {
    return run();
  }
  tiny::memory_of(device_).wait(device_);
  const auto before = failures_;
  choice.run(engine, [&] {
    run();
    tiny::memory_of(device_).wait(device_);
    return failures_ == before;  // one that raises may do next to nothing
  });
}

void Runner::run_kernels_of(const Region& region) {
  try {
    if (C10_UNLIKELY(validates.load(std::memory_order_relaxed))) {
      validate(region);
    } else if (!run_compiled(region)) {
      run_refused(region);
    }
  } catch (...) {
    for (const auto call : region.calls) {
      fail(trace_.calls[call], current_failure());
    }
  }
}

void Runner::run_calls(const Region& region) {
  for (const auto call : region.calls) {
    run_one(trace_.calls[call]);
  }
}

// What kernels refuse raises, usually. Where it does not, their time was wasted.
void Runner::run_refused(const Region& region) {
  const bool had_failed = failure != nullptr;
  run_calls(region);
  if (!had_failed && failure == nullptr) {
    note_trouble(
        "refusal",
        "compiled code refuses its data: " + region.name,
        trace_.calls[region.calls.front()].where);
  }
}

// False if nothing was done, since a call would raise or the kernels cannot run on this memory.
bool Runner::run_compiled(const Region& region) {
  at::RecordFunction profiled(at::RecordScope::FUNCTION);
  if (C10_UNLIKELY(profiled.isActive())) {
    profiled.before("torch_tiny::" + region.name);
  }
  for (const auto slot : region.made) {
    auto memory = c10::Storage(allocate_host(device_, trace_.slots[slot]->nbytes()));
    if (plan_.temporary[slot]) {
      states_[slot].memory = std::move(memory);
    } else {
      trace_.slots[slot]->adopt(std::move(memory));
    }
  }
  c10::SmallVector<void*, 32> buffers;
  for (const auto& buffer : region.buffers) {
    buffers.push_back(pointer(buffer));
  }
  c10::intrusive_ptr<c10::StorageImpl> arena;
  if (region.code->arena != 0) {
    arena = allocate_host(device_, region.code->arena);
  }
  auto* scratch = arena ? static_cast<char*>(arena->mutable_data()) : nullptr;
  if (region.code->cuda != nullptr) {
    if (!region.code->cuda->is_usable() || !are_aligned(region, buffers)) {
      return false;
    }
    launch_kernels(region, buffers, scratch, host_);
  } else {
    if (!region.code->guard.empty()) {
      bool holds = false;
      buffers.push_back(&holds);
      run_kernels(*region.code, region.code->guard, buffers, scratch);
      if (!holds) {
        return false;
      }
    }
    run_kernels(*region.code, region.code->kernels, buffers, scratch);
    copy_home(*region.code, buffers, scratch);
  }
  return true;
}

// Runs both ways from the same memory and compares everything that was written.
void Runner::validate(const Region& region) {
  struct Written {
    uint32_t slot;
    c10::ScalarType dtype;
    at::Tensor before, compiled;
  };
  auto whole = [&](const RegionBuffer& buffer) {
    const auto memory = memory_of(buffer.slot);
    const auto size = static_cast<int64_t>(memory.nbytes()) /
        static_cast<int64_t>(c10::elementSize(buffer.dtype));
    return host_tensor(memory, {size}, {1}, 0, buffer.dtype, false, false);
  };
  // The memory of a result may be larger than the result, and what lies beyond it is nobody's.
  auto seen = [&](const RegionBuffer& buffer, const at::Tensor& all) {
    for (const auto index : region.calls) {
      const auto& call = trace_.calls[index];
      const auto& results = call.signature->results;
      const auto place = static_cast<size_t>(buffer.slot) - call.first_fresh;
      if (buffer.slot >= call.first_fresh && place < results.size() &&
          results[place].spec.dtype == buffer.dtype) {
        const auto& spec = results[place].spec;
        return all.as_strided(spec.sizes, spec.strides, results[place].offset);
      }
    }
    return all;
  };
  std::vector<Written> written;
  for (const auto& buffer : region.buffers) {
    if (buffer.is_slot && buffer.is_written) {
      const bool made =
          std::find(region.made.begin(), region.made.end(), buffer.slot) != region.made.end();
      written.push_back(
          {buffer.slot, buffer.dtype, made ? at::Tensor() : whole(buffer).clone(), {}});
    }
  }
  if (!run_compiled(region)) {
    return run_refused(region);
  }
  // All are read before one is put back: several may be parts of one storage.
  size_t next = 0;
  for (const auto& buffer : region.buffers) {
    if (buffer.is_slot && buffer.is_written) {
      written[next++].compiled = whole(buffer).clone();
    }
  }
  next = 0;
  for (const auto& buffer : region.buffers) {
    if (buffer.is_slot && buffer.is_written) {
      const auto& before = written[next++].before;
      if (before.defined()) {
        whole(buffer).copy_(before);
      }
    }
  }
  for (const auto call : region.calls) {
    run_one(trace_.calls[call]);
  }
  next = 0;
  for (const auto& buffer : region.buffers) {
    if (buffer.is_slot && buffer.is_written) {
      const auto& one = written[next++];
      const auto compiled = seen(buffer, one.compiled).to(at::kDouble);
      const auto expected = seen(buffer, whole(buffer)).to(at::kDouble);
      TORCH_CHECK(
          at::allclose(compiled, expected, 1e-3, 1e-4, true),
          "TORCH_TINY_VALIDATE: ",
          region.name,
          " differs from PyTorch's operators in slot ",
          one.slot,
          ", recorded at ",
          text_of(trace_.calls[region.calls.front()].where));
    }
  }
}

bool Runner::has_failed(const Region& region) const {
  for (const auto& buffer : region.buffers) {
    if (buffer.is_slot &&
        (states_[buffer.slot].failure != nullptr ||
         trace_.slots[buffer.slot]->failure != nullptr)) {
      return true;
    }
  }
  return false;
}

void* Runner::pointer(const RegionBuffer& buffer) {
  return buffer.is_slot ? static_cast<char*>(memory_of(buffer.slot).mutable_data()) + buffer.offset
                        : const_cast<char*>(number(buffer).data());
}

// The bytes of a number that came with a call.
std::string_view Runner::number(const RegionBuffer& buffer) {
  const auto kept = [&](const auto& number) {
    const auto& word = numbers_.emplace_front(std::bit_cast<uint64_t>(number));
    return std::string_view(reinterpret_cast<const char*>(&word), sizeof(word));
  };
  const auto bytes_of = [](const at::Tensor& tensor, size_t item, size_t size) {
    return std::string_view(static_cast<const char*>(tensor.const_data_ptr()) + item * size, size);
  };
  const auto& given = trace_.values[trace_.calls[buffer.call].first_value + buffer.value];
  if (given.isComplexDouble()) {
    const auto complex = given.toComplexDouble();
    return kept(buffer.item == 0 ? complex.real() : complex.imag());
  }
  if (given.isTensor() && given.toTensor().is_complex()) {
    return bytes_of(given.toTensor(), buffer.item, given.toTensor().element_size() / 2);
  }
  const auto value = buffer.item < 0 ? given : given.toList().get(buffer.item);
  if (value.isTensor()) {
    return bytes_of(value.toTensor(), 0, value.toTensor().element_size());
  }
  return value.isDouble() ? kept(value.toDouble()) : kept(value.toInt());
}

c10::Storage Runner::memory_of(uint32_t slot) {
  return states_[slot].memory ? states_[slot].memory : trace_.slots[slot]->memory();
}

const at::Tensor& Runner::stand_in(const Use& use, const Spec& spec, Access access) {
  auto& state = states_[use.slot];
  if (state.spec != nullptr && state.offset == use.offset && !is_portable_ &&
      (state.spec == &spec || *state.spec == spec)) {
    return state.tensor;
  }
  const auto& memory = state.memory ? state.memory : trace_.slots[use.slot]->memory(access);
  state.tensor =
      host_tensor(memory, spec.sizes, spec.strides, use.offset, spec.dtype, spec.conj, spec.neg);
  state.spec = &spec;
  state.offset = use.offset;
  return state.tensor;
}

void Runner::run_call(const Call& call, Part part) {
  const auto& signature = *call.signature;
  if (C10_UNLIKELY(is_portable_) && !is_raising_ && !is_transfer(signature)) {
    for (const auto& result : signature.results) {
      tiny::memory_of(device_).check(device_, result.nbytes);
    }
    note_fallback(device_, signature.op->name, call.where);
  }
  stack_.clear();
  push_arguments(
      stack_,
      signature,
      trace_.values.data() + call.first_value,
      [&](size_t i) -> const at::Tensor& {
        const bool reads = is_portable_ && !signature.writes[i];
        const auto access = reads ? Access::kRead : Access::kWrite;
        return stand_in(trace_.uses[call.first_use + i], signature.specs[i], access);
      },
      host_,
      part);
  if (C10_UNLIKELY(signature.draws_hidden && has_portable_numbers(device_))) {
    const HiddenNumbers numbers(trace_.values[call.first_value + signature.value_count]);
    call_aten(*signature.op, device_, stack_);
  } else if (signature.product != nullptr && has_two_ways_) {
    products += signature.product->run(stack_, [&] { call_aten(*signature.op, device_, stack_); });
  } else {
    call_aten(*signature.op, device_, stack_);
  }
  size_t next = 0;
  for (size_t i = 0; i < stack_.size(); ++i) {
    if (signature.op->returns[i] >= 0 || signature.list_sizes[i] == Signature::kConstant) {
      continue;
    }
    if (signature.list_sizes[i] == Signature::kTensor) {
      take_result(call, next++, stack_[i].toTensor());
    } else {
      auto place = next + part.first;
      for (auto& tensor : stack_[i].toTensorVector()) {
        take_result(call, place++, std::move(tensor));
      }
      next += signature.list_sizes[i];
    }
  }
  stack_.clear();  // not before: results that share memory are told by each other
}

void Runner::take_result(const Call& call, size_t index, at::Tensor tensor) {
  const auto& expected = call.signature->results[index];
  if (!expected.defined) {
    return;
  }
  TORCH_CHECK(
      tensor.defined() && tensor.sizes() == expected.spec.sizes,
      "torch_tiny expected a result of sizes ",
      c10::IntArrayRef(expected.spec.sizes),
      " but got ",
      tensor.defined() ? c10::str(tensor.sizes()) : std::string("none"));
  // Every fresh result has memory of its own, from its first call on (eager_call.cpp).
  if (C10_UNLIKELY(shares_memory(tensor) && tensor.device() == host_)) {
    tensor = with_layout(tensor, expected, host_);
  } else if (C10_UNLIKELY(!has_layout(tensor, expected) || tensor.device() != host_)) {
    call.signature->stale = true;
    ++relayouts;
    note_trouble("relayout", "another layout than before: " + call.signature->op->name, call.where);
    tensor = with_layout(tensor, expected, host_);
  }
  const auto slot = call.first_fresh + index;
  auto& state = states_[slot];
  if (plan_.temporary[slot] && !is_portable_) {
    state.memory = tensor.storage();
  } else {
    trace_.slots[slot]->adopt(tensor.storage());
  }
  state.tensor = std::move(tensor);
  state.spec = &expected.spec;
  state.offset = expected.offset;
}

std::exception_ptr Runner::failed_input(const Call& call) const {
  for (size_t i = 0; i < call.signature->specs.size(); ++i) {
    const auto slot = trace_.uses[call.first_use + i].slot;
    if (states_[slot].failure != nullptr) {
      return states_[slot].failure;
    }
    if (trace_.slots[slot] && trace_.slots[slot]->failure != nullptr) {
      return trace_.slots[slot]->failure;
    }
  }
  return nullptr;
}

// Results that were never made raise when they are read; what was written before stays.
void Runner::fail(const Call& call, const std::exception_ptr& why) {
  ++failures_;
  if (failure == nullptr) {
    failure = why;
  }
  for (size_t i = 0; i < call.signature->results.size(); ++i) {
    const auto slot = call.first_fresh + i;
    states_[slot].failure = why;
    if (trace_.slots[slot]) {
      trace_.slots[slot]->failure = why;
    }
  }
}

}  // namespace tiny
