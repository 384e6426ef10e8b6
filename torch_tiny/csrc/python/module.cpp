// torch_tiny._C: the Python face of the core.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "base/cgroup.h"
#include "base/device.h"
#include "base/lock_order.h"
#include "core/operator.h"
#include "memory/allocator.h"
#include "memory/cpu_cache.h"
#include "memory/kind.h"
#include "memory/shared.h"
#include "memory/storage.h"
#include "python/compiler_module.h"
#include "python/composed_module.h"
#include "python/portable_module.h"
#include "random/generator.h"
#include "random/portable_random.h"
#include "record/registration.h"
#include "record/resize.h"
#include "run/queue.h"

#include <unordered_set>

namespace py = pybind11;

namespace tiny {
namespace {

// Whether there is memory of ours behind a tensor. Fake, functional, sparse and vmapped tensors on
// device "tiny" have none, or a storage of another kind.
bool has_memory(const at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  return tensor.device().type() == kTiny && impl->has_storage() &&
      dynamic_cast<TinyStorage*>(impl->unsafe_storage().unsafeGetStorageImpl()) != nullptr;
}

void check_tiny(const at::Tensor& tensor) {
  TORCH_CHECK(
      has_memory(tensor), "expected a tensor with memory on device 'tiny', got ", tensor.device());
}

at::Tensor host_alias(const at::Tensor& tensor) {
  check_tiny(tensor);
  TORCH_CHECK(
      !is_portable(tensor.device().index()),
      "memory of ",
      device_name(tensor.device().index()),
      " cannot be shared: use tensor.cpu(), which copies it");
  at::Tensor result;
  Queue::of(tensor.device().index()).run_then("memory shared", [&] {
    result = exported_tensor(tensor);
  });
  return result;
}

// Shares it with tinygrad, which looks only after a synchronize: operators go on being recorded.
at::Tensor host_memory(const at::Tensor& tensor) {
  check_tiny(tensor);
  at::Tensor result;
  Queue::of(tensor.device().index()).run_then("memory shared", [&] {
    result = host_tensor(tensor);
    share_storage(tensor.storage());
  });
  return result;
}

// The same on a portable device: what `lend` makes of the buffer's number, before anything else can
// run on the device.
py::object share_buffer(const at::Tensor& tensor, const py::function& lend) {
  check_tiny(tensor);
  py::object result;
  Queue::of(tensor.device().index()).run_then("memory shared", [&] {
    share_storage(tensor.storage());
    const WithGil gil;
    result = lend(TinyStorage::of(tensor).home());
  });
  return result;
}

at::Tensor adopt_shared(const at::Tensor& host, c10::DeviceIndex index) {
  auto tensor = adopt_tensor(index, host);
  share_storage(tensor.storage());
  return tensor;
}

// A flat tensor over memory that is shared already, if a tensor over it lives.
std::optional<at::Tensor> shared_tensor(
    c10::DeviceIndex index, uintptr_t memory, c10::ScalarType dtype) {
  auto storage = find_shared(index, memory);
  if (!storage.has_value()) {
    return std::nullopt;
  }
  const auto size = storage->nbytes() / c10::elementSize(dtype);
  return tensor_over(std::move(*storage), {static_cast<int64_t>(size)}, {1}, 0, dtype);
}

void materialize(const at::Tensor& tensor) {
  check_tiny(tensor);
  auto& storage = TinyStorage::of(tensor);
  Queue::of(tensor.device().index()).run_if_pending(storage, "data_ptr", [&] {
    storage.memory(Access::kRead);
  });
}

// Of all devices together.
Metrics total_metrics() {
  Metrics total;
  for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
    const Recording recording(Queue::of(index).recorder);
    const auto& one = recording->metrics;
    total.calls += one.calls;
    total.traces += one.traces;
    total.plan_hits += one.plan_hits;
    total.plan_misses += one.plan_misses;
    total.metadata_misses += one.metadata_misses;
    total.syncs += one.syncs;
    total.relayouts += one.relayouts;
    total.products += one.products;
    total.graphs += one.graphs;
    total.graph_runs += one.graph_runs;
    total.seconds_recording += one.seconds_recording;
    total.seconds_running += one.seconds_running;
    for (const auto& [cause, count] : one.causes.counts()) {
      total.causes.count(cause.first, cause.second, count);
    }
    for (const auto& [what, count] : one.miss_reasons.counts()) {
      total.miss_reasons.count(what.first, what.second, count);
    }
  }
  return total;
}

py::dict metrics() {
  const auto total = total_metrics();
  std::vector<std::tuple<std::string, uint64_t, uint64_t>> operators;
  for_each_operator(
      [&](Operator& op) { operators.emplace_back(op.name, op.calls.load(), op.at_once.load()); });
  py::dict by_operator, at_once;
  for (const auto& [name, calls, calls_at_once] : operators) {
    if (calls != 0) {
      by_operator[py::str(name)] = calls;
    }
    if (calls_at_once != 0) {
      at_once[py::str(name)] = calls_at_once;
    }
  }
  auto listed = [](const std::map<std::pair<std::string, SourceLine>, uint64_t>& counted) {
    py::list entries;
    for (const auto& [cause, count] : counted) {
      py::dict entry;
      entry["reason"] = cause.first;
      entry["where"] = text_of(cause.second);
      entry["count"] = count;
      entries.append(entry);
    }
    return entries;
  };
  py::dict result;
  result["calls"] = total.calls;
  result["calls_by_op"] = by_operator;
  result["at_once_by_op"] = at_once;
  result["traces"] = total.traces;
  result["plan_hits"] = total.plan_hits;
  result["plan_misses"] = total.plan_misses;
  result["metadata_hits"] = total.calls;  // a call is recorded when its signature is known
  result["metadata_misses"] = total.metadata_misses;
  result["syncs"] = total.syncs;
  result["relayouts"] = total.relayouts;
  result["products"] = total.products;
  result["graphs"] = total.graphs;
  result["graph_runs"] = total.graph_runs;
  result["causes"] = listed(total.causes.counts());
  result["miss_reasons"] = listed(total.miss_reasons.counts());
  result["seconds_recording"] = total.seconds_recording;
  result["seconds_running"] = total.seconds_running;
  add_portable_counts(result);
  return result;
}

void reset_metrics() {
  for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
    Recording(Queue::of(index).recorder)->metrics = {};
  }
  reset_portable_counts();
  for_each_operator([](Operator& op) {
    op.calls = 0;
    op.at_once = 0;
  });
}

py::dict memory_stats_dict(c10::DeviceIndex index) {
  constexpr auto aggregate = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = memory_of(index).stats(index);
  py::dict result;
  auto add = [&](const std::string& name, const c10::CachingAllocator::StatArray& array) {
    const auto& stat = array[aggregate];
    result[py::str(name + ".current")] = stat.current;
    result[py::str(name + ".peak")] = stat.peak;
    result[py::str(name + ".allocated")] = stat.allocated;
    result[py::str(name + ".freed")] = stat.freed;
  };
  add("allocation", stats.allocation);
  add("allocated_bytes", stats.allocated_bytes);
  add("reserved_bytes", stats.reserved_bytes);
  add("requested_bytes", stats.requested_bytes);
  result["num_alloc_retries"] = stats.num_alloc_retries;
  result["num_ooms"] = stats.num_ooms;
  return result;
}

// `numbers` is whose random numbers are drawn: "default", "portable" or "host".
void init(
    const std::vector<std::string>& hosts,
    const std::string& numbers,
    const std::unordered_map<std::string, std::vector<std::string>>& traits,
    const std::vector<ComposedRow>& composed) {
  init_devices(hosts);
  choose_source(
      numbers == "portable"   ? RandomSource::kPortable
          : numbers == "host" ? RandomSource::kHost
                              : RandomSource::kDefault);
  static const bool installed = [&] {
    set_traits(traits);
    install_allocator();
    install_storage();
    install_portable_random();
    install_composed(composed);
    install_operators();
    run_before_states([](c10::DeviceIndex index) { run_trace(index, "generator"); });
    return true;
  }();
  (void)installed;
}

void set_limits(size_t calls, size_t bytes) {
  for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
    Recording(Queue::of(index).recorder)->limits = {calls, bytes};
  }
}

// A function that runs what was recorded, which may warn and raise as PyTorch's own functions do.
template <typename Function>
void def_running(py::module& m, const char* name, Function&& function) {
  m.def(name, torch::wrap_pybind_function(std::forward<Function>(function)));
}

// There are few reasons to run, and a run may be told of after its cause is gone.
const char* for_ever(const std::string& reason) {
  static auto* kept = new std::unordered_set<std::string>;
  return kept->insert(reason).first->c_str();
}

}  // namespace
}  // namespace tiny

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace tiny;
  m.def("init", &init);
  m.def("add_library_folder", &add_library_folder);
  m.def("device_count", &device_count);
  m.def("current_device", &current_device);
  m.def("set_device", &set_device);
  m.def("exchange_device", &exchange_device);
  if constexpr (kChecksLocks) {
    m.def("wait_with_the_gil", [] { Ordered<Rank::kRunning>().lock(); });
  }
  m.def("device_host", [](c10::DeviceIndex index) { return device_name(index); });
  def_running(
      m, "run_everything", [](const std::string& reason) { run_everything(for_ever(reason)); });
  // Nothing of Python's runs meanwhile: it might record.
  m.def("set_default_type_while_idle", [](c10::ScalarType type) {
    return call_while_idle([&] { c10::set_default_dtype(c10::scalarTypeToTypeMeta(type)); });
  });
  m.def("default_type_was_set", &default_type_was_set);
  def_running(m, "synchronize", [](c10::DeviceIndex index) {
    run_trace(index, "synchronize");
    WithoutGil no_gil;
    memory_of(index).wait(index);
  });
  def_running(m, "run", [](c10::DeviceIndex index, const std::string& reason) {
    run_trace_soon(index, for_ever(reason));
  });
  m.def("finish", [] {
    for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
      Queue::of(index).finish();
    }
  });
  def_running(m, "host_alias", &host_alias);
  def_running(m, "host_memory", &host_memory);
  def_running(m, "share_buffer", &share_buffer);
  m.def("shared_tensor", &shared_tensor);
  m.def("adopt_shared", &adopt_shared);
  m.def("adopt_shared_buffer", &adopt_shared_buffer);
  m.def("has_memory", &has_memory);
  m.def("fix_size", &fix_size);
  def_running(m, "materialize", &materialize);
  m.def("default_generator", [](c10::DeviceIndex index) { return default_generator(index); });
  m.def("metrics", &metrics);
  m.def("reset_metrics", &reset_metrics);
  m.def("memory_stats", &memory_stats_dict);
  m.def("reset_peak_memory_stats", [](c10::DeviceIndex index) {
    memory_of(index).reset_peaks(index);
  });
  m.def("reset_accumulated_memory_stats", [](c10::DeviceIndex index) {
    memory_of(index).reset_accumulated(index);
  });
  m.def("empty_cache", &empty_cache);
  m.def("memory_limit_of_groups", &memory_limit_of_groups);
  m.def("set_limits", &set_limits);
  m.def("set_kept", [](size_t plans, size_t signatures, size_t codes) {
    most_plans = plans;
    most_signatures = signatures;
    most_codes = codes;
  });
  m.def("fill_fresh_memory", [](int byte) { filling = byte; });
  m.def("in_bad_fork", &in_bad_fork);
  bind_engine(m);
  bind_portable(m);
}
