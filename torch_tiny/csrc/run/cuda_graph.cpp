#include "run/cuda_graph.h"

#include <ATen/Context.h>
#include <ATen/ops/ones.h>
#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/gil.h"
#include "base/mode.h"
#include "memory/allocator.h"
#include "memory/cuda_driver.h"
#include "plan/compiler.h"
#include "run/runner.h"

namespace py = pybind11;

namespace tiny {
namespace {

constexpr int kWatched = 4;                       // runs before the first capture
constexpr int kPatience = 4;                      // runs in a row that do not fit
constexpr int kMostCaptures = 3;                  // of one plan
constexpr uint64_t kSurelyNotCompiled = 32;       // runs after which no region is to come
constexpr size_t kMostBytes = size_t{2} << 30;    // that a graph may hold for itself
constexpr size_t kMostCopied = size_t{16} << 20;  // of one input or output
constexpr size_t kAlwaysCopied = 64;              // a loss, say, which people keep
constexpr auto kCudaType = c10::DeviceType::CUDA;

// Python objects must not be dropped here: that takes the GIL, which nobody may wait for while a
// queue is locked. They are dropped when a graph is captured next.
struct Graveyard {
  std::mutex mutex;
  std::vector<void*> graphs;
};

Graveyard& graveyard() {
  static auto* dead = new Graveyard;
  return *dead;
}

void bury() {
  std::vector<void*> graphs;
  {
    std::lock_guard lock(graveyard().mutex);
    graphs.swap(graveyard().graphs);
  }
  for (auto* graph : graphs) {
    Py_DECREF(static_cast<PyObject*>(graph));
  }
}

c10::Stream capture_stream(c10::Device host) {
  static auto* streams = new std::map<c10::DeviceIndex, c10::Stream>;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  const auto found = streams->find(host.index());
  if (found != streams->end()) {
    return found->second;
  }
  const auto stream = c10::impl::VirtualGuardImpl(kCudaType).getStreamFromGlobalPool(host, false);
  return streams->emplace(host.index(), stream).first->second;
}

bool is_number(const c10::IValue& value) {
  return value.isDouble() || value.isInt() || value.isBool();
}

// Numbers, lists of numbers, and CPU tensors of one element can be compared.
bool is_comparable(const c10::IValue& value) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    return tensor.defined() && tensor.device().is_cpu() && tensor.dim() == 0;
  }
  if (value.isList()) {
    const auto list = value.toListRef();
    return std::all_of(list.begin(), list.end(), is_number);
  }
  return is_number(value);
}

bool are_equal(const c10::IValue& a, const c10::IValue& b) {
  if (a.isDouble() && b.isDouble()) {
    const auto left = a.toDouble(), right = b.toDouble();
    return std::memcmp(&left, &right, sizeof(double)) == 0;
  }
  if (a.isInt() && b.isInt()) {
    return a.toInt() == b.toInt();
  }
  if (a.isBool() && b.isBool()) {
    return a.toBool() == b.toBool();
  }
  if (a.isList() && b.isList()) {
    const auto left = a.toListRef(), right = b.toListRef();
    return std::equal(left.begin(), left.end(), right.begin(), right.end(), are_equal);
  }
  if (a.isTensor() && b.isTensor()) {
    const auto& left = a.toTensor();
    const auto& right = b.toTensor();
    return is_comparable(b) && left.scalar_type() == right.scalar_type() &&
        std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
  }
  return false;
}

bool draws_numbers(const Signature& signature) {
  return signature.draws_hidden || signature.op->generator >= 0;
}

// Whether there is something to gain, and nothing in the way that is known before trying.
bool is_worth_capturing(const Trace& trace, const Plan& plan) {
  const auto steps = plan.compiled != nullptr ? plan.compiled->steps.size() : trace.calls.size();
  return steps >= 2 && trace.bytes <= kMostBytes &&
      std::none_of(
             trace.calls.begin(),
             trace.calls.end(),
             [](const Call& call) {
               return draws_numbers(*call.signature) || call.signature->op->waits_for_device;
             }) &&
      std::all_of(trace.values.begin(), trace.values.end(), is_comparable);
}

// Whether the plan will go on running as it does now.
bool is_settled(const Plan& plan) {
  if (plan.compiled == nullptr) {
    return plan.runs >= kSurelyNotCompiled;
  }
  const auto& regions = plan.compiled->regions;
  return std::all_of(
      regions.begin(), regions.end(), [](const Region& one) { return one.code->choice.decided(); });
}

std::vector<bool> fresh_slots(const Trace& trace) {
  std::vector<bool> fresh(trace.slots.size(), false);
  for (const auto& call : trace.calls) {
    for (size_t i = 0; i < call.signature->results.size(); ++i) {
      fresh[call.first_fresh + i] = true;
    }
  }
  return fresh;
}

std::vector<bool> written_slots(const Trace& trace) {
  std::vector<bool> written(trace.slots.size(), false);
  for (const auto& call : trace.calls) {
    const auto& writes = call.signature->writes;
    for (size_t i = 0; i < writes.size(); ++i) {
      if (writes[i]) {
        written[trace.uses[call.first_use + i].slot] = true;
      }
    }
  }
  return written;
}

// Null if it has no memory, or none is needed.
const void* address_of(const TinyStorage& storage) {
  return storage.failure == nullptr ? storage.data() : nullptr;
}

// A library that failed while capturing leaves an error behind, which the next kernel that PyTorch
// launches would report as its own.
void clear_errors(c10::Device host) {
  for (int tries = 0; tries < 3; ++tries) {
    try {
      at::ones({1}, at::device(host));
      return;
    } catch (const c10::Error&) {
    }
  }
}

// PyTorch's own class looks after the memory that a graph works on. Null if `body` cannot be
// captured: then nothing has been done.
py::object captured(c10::Device host, c10::function_ref<bool()> body) {
  const WithGil gil;
  bury();
  const auto cuda = py::module_::import("torch.cuda");
  auto graph = cuda.attr("CUDAGraph")(/*keep_graph=*/true);
  bool begun = false;
  try {
    graph.attr("capture_begin")(py::arg("capture_error_mode") = "thread_local");
    begun = true;
    bool done = false;
    {
      const WithoutGil no_gil;
      done = body();
    }
    begun = false;
    graph.attr("capture_end")();
    if (done) {
      graph.attr("instantiate")();
      return graph;
    }
  } catch (py::error_already_set&) {
    // An operator that waits for the device, say, spoils the capture.
  }
  if (begun) {
    try {
      graph.attr("capture_end")();
    } catch (py::error_already_set&) {
    }
  }
  // Where capturing failed, PyTorch goes on to set memory aside for it.
  try {
    py::module_::import("torch._C")
        .attr("_cuda_endAllocateToPool")(host.index(), graph.attr("pool")());
  } catch (py::error_already_set&) {
  }
  return {};
}

}  // namespace

PlanGraph::~PlanGraph() {
  drop();
}

PlanGraph::Done PlanGraph::run(Trace& trace, const Plan& plan, c10::DeviceIndex device) {
  if (state_ == State::kNever || !is_settled(plan) || at::hasCallbacks() ||
      at::globalContext().deterministicAlgorithms() || mode() != Mode::kAuto ||
      validates.load(std::memory_order_relaxed) ||
      Compiler::get().listens.load(std::memory_order_relaxed)) {
    return Done::kNothing;
  }
  if (state_ == State::kWatching) {
    watch(trace);
    if (++watched_ < kWatched) {
      return Done::kNothing;
    }
    state_ = is_worth_capturing(trace, plan) && capture(trace, plan, device) ? State::kReady
                                                                             : State::kNever;
    return state_ == State::kReady ? Done::kCaptured : Done::kNothing;
  }
  if (!fits(trace, host_device(device))) {
    miss();
    return Done::kNothing;
  }
  misses_ = 0;
  launch(trace.slots, device);
  return Done::kReplayed;
}

// Finds out which inputs come from elsewhere each time.
void PlanGraph::watch(const Trace& trace) {
  if (inputs_.empty()) {
    const auto fresh = fresh_slots(trace), written = written_slots(trace);
    for (uint32_t slot = 0; slot < trace.slots.size(); ++slot) {
      if (!fresh[slot]) {
        inputs_.push_back({slot, written[slot]});
      }
    }
    kept_.resize(trace.slots.size());
  }
  for (auto& input : inputs_) {
    auto& storage = *trace.slots[input.slot];
    const auto* address = address_of(storage);
    input.varies |= watched_ > 0 && (address != input.address || storage.nbytes() != input.nbytes);
    input.address = address;
    input.nbytes = storage.nbytes();
  }
}

bool PlanGraph::fits(const Trace& trace, c10::Device host) {
  const auto stream = c10::impl::VirtualGuardImpl(kCudaType).getStream(host);
  if (stream.id() != stream_ || trace.flags != flags_ ||
      !std::equal(
          trace.values.begin(), trace.values.end(), values_.begin(), values_.end(), are_equal)) {
    return false;
  }
  bool fit = true;
  for (auto& input : inputs_) {
    auto& storage = *trace.slots[input.slot];
    const auto* address = address_of(storage);
    if (storage.failure != nullptr || storage.nbytes() != input.nbytes) {
      return false;
    }
    if (!input.home && address != input.address) {
      input.varies = has_moved_ = true;
      fit = false;
    } else if (input.home && address == nullptr) {
      return false;
    }
  }
  for (const auto& output : outputs_) {
    if (output.memory.use_count() != 1) {  // the last result is still in use
      kept_[output.slot] = has_moved_ = true;
      fit = false;
    }
  }
  return fit;
}

bool PlanGraph::capture(Trace& trace, const Plan& plan, c10::DeviceIndex device) {
  ++captures_;
  const auto host = host_device(device);
  const Slots slots = trace.slots;  // running lets go of them
  const auto fresh = fresh_slots(trace);
  std::vector<bool> had_memory;
  for (const auto& slot : slots) {
    had_memory.push_back(slot != nullptr && address_of(*slot) != nullptr);
  }
  Runner runner(trace, plan, device);
  for (auto& input : inputs_) {
    if (slots[input.slot]->failure != nullptr) {
      return false;
    }
    if (!input.varies) {
      continue;
    }
    if (input.is_written || input.address == nullptr || input.nbytes > kMostCopied) {
      return false;
    }
    input.home = c10::Storage(allocate_host(device, input.nbytes));
    runner.place(input.slot, input.home);
  }
  const c10::impl::VirtualGuardImpl guard(kCudaType);
  const auto stream = guard.getStream(host);
  guard.exchangeStream(capture_stream(host));
  auto graph = captured(host, [&] {
    runner.run();
    return runner.failure == nullptr;
  });
  guard.exchangeStream(stream);
  if (!graph) {
    clear_errors(host);
    trace.slots = slots;
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      if (fresh[slot] && slots[slot] != nullptr) {
        slots[slot]->failure = nullptr;
      }
    }
    return false;
  }
  {
    const WithGil gil;
    exec_ = reinterpret_cast<void*>(graph.attr("raw_cuda_graph_exec")().cast<uintptr_t>());
    graph_ = graph.release().ptr();
  }
  stream_ = stream.id();
  flags_ = trace.flags;
  values_ = trace.values;
  outputs_.clear();
  for (uint32_t slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot] == nullptr || had_memory[slot] || plan.temporary[slot] ||
        address_of(*slots[slot]) == nullptr) {
      continue;
    }
    const auto nbytes = slots[slot]->nbytes();
    const bool is_copied = nbytes <= kAlwaysCopied || (kept_[slot] && nbytes <= kMostCopied);
    outputs_.push_back({slot, slots[slot]->memory(), is_copied});
  }
  launch(slots, device);
  return true;
}

void PlanGraph::launch(const Slots& slots, c10::DeviceIndex device) {
  const auto host = host_device(device);
  auto* stream = c10::impl::VirtualGuardImpl(kCudaType).getStream(host).native_handle();
  for (const auto& input : inputs_) {
    if (input.home && input.nbytes > 0) {
      const auto* from = slots[input.slot]->memory().data();
      copy_on_gpu(input.home.mutable_data(), from, input.nbytes, stream);
    }
  }
  launch_graph(exec_, stream);
  for (const auto& output : outputs_) {
    auto memory = output.memory;
    if (output.is_copied && memory.nbytes() > 0) {
      memory = c10::Storage(allocate_host(device, output.memory.nbytes()));
      copy_on_gpu(memory.mutable_data(), output.memory.data(), memory.nbytes(), stream);
    }
    slots[output.slot]->adopt(std::move(memory));
  }
}

// Numbers that change each time will not come again; what has moved may stay where it is now.
void PlanGraph::miss() {
  if (++misses_ < kPatience) {
    return;
  }
  drop();
  const bool again = has_moved_ && captures_ < kMostCaptures;
  state_ = again ? State::kWatching : State::kNever;
  watched_ = misses_ = 0;
  has_moved_ = false;
  for (auto& input : inputs_) {
    input.home = {};
  }
}

void PlanGraph::drop() {
  outputs_.clear();
  exec_ = nullptr;
  if (graph_ != nullptr) {
    std::lock_guard lock(graveyard().mutex);
    graveyard().graphs.push_back(std::exchange(graph_, nullptr));
  }
}

}  // namespace tiny
