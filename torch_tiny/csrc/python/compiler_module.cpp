// The Python face of the door to the compiler: jobs out, compiled plans in.
#include "python/compiler_module.h"

#include <dlfcn.h>
#include <link.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string_view>

#include "base/mode.h"
#include "base/troubles.h"
#include "plan/compiler.h"
#include "random/cuda_draws.h"
#include "run/queue.h"

namespace py = pybind11;

namespace tiny {
namespace {

constexpr size_t kAlignment = 64;

// It was loaded from a file that is open for this moment. Who looks for symbols by the names of
// libraries, as crash reporters do, would open whatever has its number by then.
void forget_file(void* handle) {
  constexpr std::string_view kOpenFile = "/proc/self/fd/", kName = "torch_tiny";
  static_assert(kName.size() < kOpenFile.size());
  link_map* library = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &library) == 0 &&
      std::string_view(library->l_name).starts_with(kOpenFile)) {
    std::memcpy(library->l_name, kName.data(), kName.size());
    library->l_name[kName.size()] = '\0';
  }
}

std::shared_ptr<void> open_library(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(handle != nullptr, "compiled code does not load: ", dlerror());
  forget_file(handle);
  return {handle, [](void* library) { dlclose(library); }};
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
  TORCH_CHECK(kernel.function != nullptr, "compiled code has no kernel ", kernel.name);
  kernel.parallel = given["parallel"].cast<int64_t>();
  kernel.work = given["work"].cast<int64_t>();
  return kernel;
}

RegionBuffer buffer_from(const py::dict& given) {
  RegionBuffer buffer;
  buffer.is_slot = given.contains("slot");
  if (buffer.is_slot) {
    buffer.slot = given["slot"].cast<uint32_t>();
    buffer.offset = given["offset"].cast<size_t>();
    buffer.is_written = given["written"].cast<bool>();
    buffer.is_read = given["read"].cast<bool>();
    buffer.dtype = static_cast<c10::ScalarType>(given["dtype"].cast<int>());
  } else {
    buffer.call = given["call"].cast<uint32_t>();
    buffer.value = given["value"].cast<uint32_t>();
    buffer.item = given["item"].cast<int32_t>();
  }
  return buffer;
}

// On a portable device there are buffers alone: it is Python that runs the kernels.
std::shared_ptr<Code> code_from(const py::dict& given, c10::DeviceIndex device) {
  auto code = std::make_shared<Code>();
  for (const auto& buffer : given["buffers"]) {
    code->buffers.push_back(buffer_from(buffer.cast<py::dict>()));
  }
  code->made = given["made"].cast<std::vector<uint32_t>>();
  if (is_portable(device)) {
    return code;
  }
  const auto library = given["library"].cast<std::string>();
  if (host_device(device).type() == c10::kCUDA) {
    std::ifstream file(library, std::ios::binary);
    code->cuda = std::make_shared<CudaLibrary>(
        std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()));
  } else {
    code->library = open_library(library);
  }
  for (const auto& kernel : given["kernels"]) {
    code->kernels.push_back(kernel_from(kernel.cast<py::dict>(), code->library.get()));
  }
  for (const auto& kernel : given["guard"]) {
    code->guard.push_back(kernel_from(kernel.cast<py::dict>(), code->library.get()));
  }
  for (const auto bytes : given["temporaries"].cast<std::vector<size_t>>()) {
    code->temporaries.push_back(code->arena);
    code->arena += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  for (const auto& [temporary, buffer, bytes] :
       given["copies"].cast<std::vector<std::tuple<int, int, size_t>>>()) {
    code->copies.emplace_back(temporary, buffer);
    code->copy_bytes.push_back(bytes);
  }
  for (const auto& [threads, engine] :
       given["engines"].cast<std::map<std::string, std::string>>()) {
    code->choice.decide(
        std::stoi(threads), engine == "uop" ? Choice::Engine::kUop : Choice::Engine::kAten);
  }
  return code;
}

// The code that is loaded on each device, by its key; with the GIL held.
class LoadedCodes {
 public:
  std::shared_ptr<Code> find(c10::DeviceIndex device, const std::string& key) const {
    const auto found = codes_.find({device, key});
    return found == codes_.end() ? nullptr : found->second.lock();
  }
  void add(c10::DeviceIndex device, const std::string& key, const std::shared_ptr<Code>& code) {
    forget_expired();
    if (codes_.size() >= most_codes && !codes_.contains({device, key})) {
      make_room();
      TORCH_CHECK(
          codes_.size() < most_codes,
          codes_.size(),
          " compiled regions are loaded and in use, and no more can be");
    }
    codes_[{device, key}] = code;
  }

 private:
  void forget_expired() {
    std::erase_if(codes_, [](const auto& item) { return item.second.expired(); });
  }
  // An eighth at least, lest the next ones should look for it again.
  void make_room() {
    const auto enough = most_codes - (most_codes + 7) / 8;
    while (codes_.size() > enough && drop_old_plans()) {
      forget_expired();
    }
  }

  std::map<std::pair<c10::DeviceIndex, std::string>, std::weak_ptr<Code>> codes_;
};

LoadedCodes& loaded_codes() {
  static auto* codes = new LoadedCodes;  // never destroyed: plans may outlive what is static
  return *codes;
}

std::shared_ptr<Code> loaded_code(c10::DeviceIndex device, const std::string& key) {
  return loaded_codes().find(device, key);
}

std::shared_ptr<Code> load_code(
    c10::DeviceIndex device, const std::string& key, const py::dict& given) {
  auto code = code_from(given, device);
  loaded_codes().add(device, key, code);
  return code;
}

Region region_from(const py::dict& place, c10::DeviceIndex device) {
  Region region;
  region.name = place["name"].cast<std::string>();
  region.key = place["code"].cast<std::string>();
  region.code = loaded_code(device, region.key);
  TORCH_CHECK(region.code != nullptr, "the code of ", region.name, " is not loaded");
  region.calls = place["calls"].cast<std::vector<uint32_t>>();
  const auto slots = place["slots"].cast<std::vector<uint32_t>>();
  for (const auto slot : region.code->made) {
    region.made.push_back(slots.at(slot));
  }
  for (auto buffer : region.code->buffers) {
    (buffer.is_slot ? buffer.slot : buffer.call) =
        buffer.is_slot ? slots.at(buffer.slot) : region.calls.at(buffer.call);
    region.buffers.push_back(buffer);
  }
  if (place.contains("portable")) {
    region.portable = std::make_shared<PortableProgram>(place["portable"].cast<int64_t>());
  }
  return region;
}

bool install(
    c10::DeviceIndex device, uint64_t plan, const py::list& steps, const py::list& regions) {
  auto compiled = std::make_shared<Compiled>();
  for (const auto& region : regions) {
    compiled->regions.push_back(region_from(region.cast<py::dict>(), device));
  }
  for (const auto& [call, region, release] :
       steps.cast<std::vector<std::tuple<int32_t, int32_t, std::vector<uint32_t>>>>()) {
    compiled->steps.push_back({call, region, release});
  }
  return Queue::of(device).install(plan, std::move(compiled));
}

void replace_code(c10::DeviceIndex device, const std::string& key, const py::dict& given) {
  const auto code = code_from(given, device);
  const auto before = loaded_code(device, key);
  TORCH_CHECK(
      before != nullptr && before->buffers == code->buffers && before->made == code->made,
      "code that takes other buffers than the code before it");
  loaded_codes().add(device, key, code);
  Queue::of(device).for_each_plan([&](const Plan& plan) {
    if (plan.compiled != nullptr) {
      for (auto& region : plan.compiled->regions) {
        if (region.code == before) {
          region.code = code;
        }
      }
    }
  });
}

struct RegionState {
  std::string name, key;
  size_t calls, kernels, numbers;
  bool decided;
  std::map<int, Choice::Engine> known;
  int threads;
  double aten, uop;
};

// What is known of the compiled plans of a device, without the GIL while it is gathered.
py::list plans(c10::DeviceIndex device) {
  std::vector<std::tuple<uint64_t, uint64_t, double, size_t, std::vector<RegionState>>> found;
  Queue::of(device).for_each_plan([&](const Plan& plan) {
    if (plan.compiled == nullptr) {
      return;
    }
    std::vector<RegionState> regions;
    for (const auto& region : plan.compiled->regions) {
      const auto& choice = region.code->choice;
      regions.push_back(
          {region.name,
           region.key,
           region.calls.size(),
           region.code->kernels.size(),
           static_cast<size_t>(std::count_if(
               region.buffers.begin(),
               region.buffers.end(),
               [](const RegionBuffer& buffer) { return !buffer.is_slot; })),
           choice.decided(),
           choice.known(),
           choice.threads(),
           choice.seconds(Choice::Engine::kAten),
           choice.seconds(Choice::Engine::kUop)});
    }
    found.emplace_back(
        plan.id, plan.runs, plan.seconds, plan.signatures.size(), std::move(regions));
  });
  py::list result;
  for (const auto& [id, runs, seconds, calls, regions] : found) {
    py::list states;
    for (const auto& region : regions) {
      py::dict state;
      state["name"] = region.name;
      state["code"] = region.key;
      state["calls"] = region.calls;
      state["kernels"] = region.kernels;
      state["scalars"] = region.numbers;
      py::dict engines;
      for (const auto& [threads, engine] : region.known) {
        engines[py::str(std::to_string(threads))] = engine == Choice::Engine::kUop ? "uop" : "aten";
      }
      state["engine"] = region.decided ? engines[py::str(std::to_string(region.threads))]
                                       : py::object(py::str(""));
      state["engines"] = engines;
      state["threads"] = region.threads;
      state["seconds_aten"] = region.aten;
      state["seconds_uop"] = region.uop;
      states.append(state);
    }
    py::dict plan;
    plan["plan"] = id;
    plan["runs"] = runs;
    plan["seconds"] = seconds;
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
    lines.append(text_of(place));
  }
  return lines;
}

py::list listed_troubles() {
  py::list result;
  for (const auto& trouble : troubles()) {
    py::dict one;
    one["kind"] = trouble.kind;
    one["reason"] = trouble.reason;
    one["where"] = text_of(trouble.place);
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
    chosen_mode = mode == "uop" ? Mode::kUop : mode == "auto" ? Mode::kAuto : Mode::kAten;
  });
  m.def("set_validate", [](bool on) { validates = on; });
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
  py::class_<Code, std::shared_ptr<Code>>(m, "LoadedCode");
  m.def("loaded_code", &loaded_code);
  m.def("load_code", &load_code);
  m.def("install", &install);
  m.def("replace_code", &replace_code);
  m.def("plans", &plans);
  m.def("decisions", &Choice::decisions);
}

}  // namespace tiny
