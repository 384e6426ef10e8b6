// The Python face of the door to the compiler: jobs out, compiled plans in.
#include "engine_module.h"

#include <dlfcn.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "cuda_draws.h"
#include "engine.h"
#include "run.h"
#include "troubles.h"

namespace py = pybind11;

namespace tiny {
namespace {

constexpr size_t kAlignment = 64;

std::shared_ptr<void> open_library(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(handle != nullptr, "a compiled plan does not load: ", dlerror());
  return {handle, [](void* library) { dlclose(library); }};
}

RegionBuffer buffer_from(const py::dict& given) {
  RegionBuffer buffer;
  buffer.is_slot = given.contains("slot");
  if (buffer.is_slot) {
    buffer.slot = given["slot"].cast<uint32_t>();
    buffer.offset = given.contains("offset") ? given["offset"].cast<size_t>() : 0;
    buffer.is_written = given["written"].cast<bool>();
    buffer.is_read = !given.contains("read") || given["read"].cast<bool>();
    buffer.dtype = static_cast<c10::ScalarType>(given["dtype"].cast<int>());
  } else {
    buffer.call = given["call"].cast<uint32_t>();
    buffer.value = given["value"].cast<uint32_t>();
    buffer.item = given["item"].cast<int32_t>();
  }
  return buffer;
}

Kernel kernel_from(const py::dict& given, void* library) {
  Kernel kernel;
  kernel.name = given["name"].cast<std::string>();
  kernel.buffers = given["buffers"].cast<std::vector<int>>();
  if (given.contains("grid")) {
    kernel.launch = {
        given["grid"].cast<std::array<unsigned, 3>>(),
        given["block"].cast<std::array<unsigned, 3>>(),
        given["shared"].cast<unsigned>()};
    return kernel;
  }
  kernel.function = reinterpret_cast<Kernel::Function>(dlsym(library, kernel.name.c_str()));
  TORCH_CHECK(kernel.function != nullptr, "a compiled plan has no kernel ", kernel.name);
  kernel.parallel = given["parallel"].cast<int64_t>();
  kernel.work = given["work"].cast<int64_t>();
  return kernel;
}

Region region_from(const py::dict& given, void* library) {
  Region region;
  region.name = given["name"].cast<std::string>();
  region.calls = given["calls"].cast<std::vector<uint32_t>>();
  region.made = given["made"].cast<std::vector<uint32_t>>();
  for (const auto& buffer : given["buffers"]) {
    region.buffers.push_back(buffer_from(buffer.cast<py::dict>()));
  }
  if (given.contains("portable")) {
    region.portable = std::make_shared<PortableProgram>(given["portable"].cast<int64_t>());
    return region;
  }
  for (const auto& kernel : given["kernels"]) {
    region.kernels.push_back(kernel_from(kernel.cast<py::dict>(), library));
  }
  for (const auto& kernel : given["guard"]) {
    region.guard.push_back(kernel_from(kernel.cast<py::dict>(), library));
  }
  for (const auto bytes : given["temporaries"].cast<std::vector<size_t>>()) {
    region.temporaries.push_back(region.arena);
    region.arena += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  for (const auto& [temporary, buffer, bytes] :
       given["copies"].cast<std::vector<std::tuple<int, int, size_t>>>()) {
    region.copies.emplace_back(temporary, buffer);
    region.copy_bytes.push_back(bytes);
  }
  if (const auto engine = given["engine"].cast<std::string>(); !engine.empty()) {
    region.choice.decide(engine == "uop" ? Choice::Engine::kUop : Choice::Engine::kAten);
  }
  return region;
}

bool install(
    c10::DeviceIndex device,
    uint64_t plan,
    const std::string& library,
    const py::list& steps,
    const py::list& regions) {
  auto compiled = std::make_shared<Compiled>();
  const bool on_gpu = host_device(device).type() == c10::kCUDA;
  std::shared_ptr<CudaLibrary> cuda;
  if (on_gpu) {
    std::ifstream file(library, std::ios::binary);
    cuda = std::make_shared<CudaLibrary>(
        std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()));
  } else if (!library.empty()) {
    compiled->library = open_library(library);
  }
  for (const auto& region : regions) {
    compiled->regions.push_back(region_from(region.cast<py::dict>(), compiled->library.get()));
    compiled->regions.back().cuda = cuda;
  }
  for (const auto& [call, region, release] :
       steps.cast<std::vector<std::tuple<int32_t, int32_t, std::vector<uint32_t>>>>()) {
    compiled->steps.push_back({call, region, release});
  }
  return Queue::of(device).install(plan, std::move(compiled));
}

struct RegionState {
  std::string name;
  size_t calls, kernels, numbers;
  bool decided;
  Choice::Engine best;
  double aten, uop;
};

// What is known of the compiled plans of a device, without the GIL while it is gathered.
py::list plans(c10::DeviceIndex device) {
  std::vector<std::tuple<uint64_t, uint64_t, size_t, std::vector<RegionState>>> found;
  Queue::of(device).for_each_plan([&](const Plan& plan) {
    if (plan.compiled == nullptr) {
      return;
    }
    std::vector<RegionState> regions;
    for (const auto& region : plan.compiled->regions) {
      const auto& choice = region.choice;
      regions.push_back(
          {region.name,
           region.calls.size(),
           region.kernels.size(),
           static_cast<size_t>(std::count_if(
               region.buffers.begin(),
               region.buffers.end(),
               [](const RegionBuffer& buffer) { return !buffer.is_slot; })),
           choice.decided(),
           choice.next(),
           choice.seconds(Choice::Engine::kAten),
           choice.seconds(Choice::Engine::kUop)});
    }
    found.emplace_back(plan.id, plan.runs, plan.signatures.size(), std::move(regions));
  });
  py::list result;
  for (const auto& [id, runs, calls, regions] : found) {
    py::list states;
    for (const auto& region : regions) {
      py::dict state;
      state["name"] = region.name;
      state["calls"] = region.calls;
      state["kernels"] = region.kernels;
      state["scalars"] = region.numbers;
      state["engine"] = !region.decided ? "" : region.best == Choice::Engine::kUop ? "uop" : "aten";
      state["seconds_aten"] = region.aten;
      state["seconds_uop"] = region.uop;
      states.append(state);
    }
    py::dict plan;
    plan["plan"] = id;
    plan["runs"] = runs;
    plan["calls"] = calls;
    plan["regions"] = states;
    result.append(plan);
  }
  return result;
}

// "file.py:12" for each call.
py::list lines_of(const Job& job) {
  py::list lines;
  for (const auto& place : job.places) {
    lines.append(describe(place));
  }
  return lines;
}

py::list listed_troubles() {
  py::list result;
  for (const auto& trouble : troubles()) {
    py::dict one;
    one["kind"] = trouble.kind;
    one["reason"] = trouble.reason;
    one["where"] = describe(trouble.place);
    one["count"] = trouble.count;
    result.append(one);
  }
  return result;
}

py::object next_job(double patience) {
  std::optional<Job> job;
  {
    WithoutGil no_gil;
    job = Compiler::get().take(std::chrono::duration<double>(patience));
  }
  if (!job.has_value()) {
    return py::none();
  }
  return py::make_tuple(job->device, job->plan, job->trace, lines_of(*job));
}

// The callable gets (device, plan, trace, lines) and returns what went wrong.
std::function<std::string(const Job&)> compiling(py::object function) {
  auto* kept = new py::object(std::move(function));  // never dropped: no GIL at exit
  return [kept](const Job& job) -> std::string {
    const WithGil gil;
    try {
      return (*kept)(job.device, job.plan, job.trace, lines_of(job)).cast<std::string>();
    } catch (py::error_already_set& error) {
      if (error.matches(PyExc_KeyboardInterrupt)) {
        interruption = current_failure();
        return {};
      }
      return error.what();
    }
  };
}

}  // namespace

void bind_engine(py::module& m) {
  m.def("set_mode", [](const std::string& mode) {
    Compiler::get().mode = mode == "uop" ? Mode::kUop : mode == "auto" ? Mode::kAuto : Mode::kAten;
  });
  m.def("set_validate", [](bool on) { Compiler::get().validates = on; });
  m.def("set_cuda_graphs", [](bool on) { uses_graphs = on; });
  m.def("next_job", &next_job);
  m.def("listen", [](bool on) {
    Compiler::get().listens = on;
    return Compiler::get().heard();
  });
  m.def("wake", [] { Compiler::get().wake(); });
  m.def("reset_jobs", &Compiler::renew);
  m.def("set_compile_now", [](py::object function) {
    Compiler::get().compile_now = compiling(std::move(function));
  });
  m.def("set_compile_portable", [](py::object function) {
    Compiler::get().compile_portable = compiling(std::move(function));
  });
  m.def("set_random_kernels", [](py::object function) {
    auto* kept = new py::object(std::move(function));  // never dropped: no GIL at exit
    set_random_kernels([kept](c10::DeviceIndex gpu) -> std::string {
      const WithGil gil;
      try {
        return (*kept)(gpu).cast<std::string>();
      } catch (py::error_already_set& error) {
        TORCH_CHECK(false, "random numbers cannot be drawn on this GPU: ", error.what());
      }
    });
  });
  m.def("postponed_jobs", [] { return Compiler::get().postponed.load(); });
  m.def("troubles", &listed_troubles);
  m.def("tell_soon", &tell_soon);
  m.def("set_teller", [](py::object function) {
    auto* kept = new py::object(std::move(function));  // never dropped: no GIL at exit
    set_teller([kept] {
      try {
        (*kept)();
        return true;
      } catch (py::error_already_set& error) {
        error.restore();
        return false;
      }
    });
  });
  m.def("install", &install);
  m.def("plans", &plans);
}

}  // namespace tiny
