#include "python/portable_module.h"

#include <c10/util/Exception.h>

#include "base/gil.h"
#include "memory/portable.h"

namespace py = pybind11;

namespace tiny {
namespace {

// Calls a function of Python from a thread that may or may not hold the GIL.
template <typename Body>
auto in_python(const Body& body) {
  const WithGil gil;
  try {
    return body();
  } catch (py::error_already_set& error) {
    if (error.matches(PyExc_KeyboardInterrupt)) {
      throw;
    }
    if (error.matches(PyExc_MemoryError)) {
      const auto nbytes = py::getattr(error.value(), "nbytes", py::int_(SIZE_MAX));
      throw DeviceMemoryError(py::str(error.value()), nbytes.cast<size_t>());
    }
    TORCH_CHECK(false, error.what());
  }
}

// `given` has the methods of PortableFunctions. It is never dropped: no GIL at exit.
void set_portable(py::object given) {
  auto* python = new py::object(std::move(given));
  auto& functions = portable_functions();
  functions.upload = [python](
                         c10::DeviceIndex index, Buffer buffer, const void* data, size_t nbytes) {
    return in_python([&] {
      const auto bytes = py::memoryview::from_memory(data, static_cast<py::ssize_t>(nbytes));
      return python->attr("upload")(index, buffer, bytes).cast<Buffer>();
    });
  };
  functions.download = [python](c10::DeviceIndex index, Buffer buffer, void* data, size_t nbytes) {
    in_python([&] {
      const auto bytes = py::memoryview::from_memory(data, static_cast<py::ssize_t>(nbytes));
      python->attr("download")(index, buffer, bytes);
    });
  };
  functions.run = [python](
                      c10::DeviceIndex index,
                      int64_t program,
                      const std::vector<Buffer>& buffers,
                      const std::vector<std::string>& numbers) {
    return in_python([&]() -> std::optional<std::vector<Buffer>> {
      py::list bytes;
      for (const auto& number : numbers) {
        bytes.append(py::bytes(number));
      }
      const auto made = python->attr("run")(index, program, buffers, bytes);
      if (made.is_none()) {
        return std::nullopt;
      }
      return made.cast<std::vector<Buffer>>();
    });
  };
  functions.wait = [python](c10::DeviceIndex index) {
    in_python([&] { python->attr("wait")(index); });
  };
  functions.empty_cache = [python](c10::DeviceIndex index) {
    in_python([&] { python->attr("empty_cache")(index); });
  };
  functions.warn = [python](
                       c10::DeviceIndex index, const std::string& op, const SourceLine& place) {
    in_python([&] { python->attr("warn")(index, op, text_of(place)); });
  };
}

}  // namespace

void bind_portable(py::module& m) {
  m.def("set_portable", &set_portable);
  m.def("refuse_fallbacks", &refuse_fallbacks);
  m.def("is_portable", &is_portable);
  m.def(
      "set_missing_types",
      [](c10::DeviceIndex index, const std::vector<int>& types, std::string advice) {
        std::vector<c10::ScalarType> missing;
        for (const auto type : types) {
          missing.push_back(static_cast<c10::ScalarType>(type));
        }
        set_missing_types(index, std::move(missing), std::move(advice));
      });
  m.def("note_traffic", [](const char* direction, size_t nbytes) {
    note_traffic(direction, nbytes);
  });
  m.def("dropped", [](c10::DeviceIndex index) {
    return py::make_tuple(dropped_buffers(index), dropped_programs());
  });
}

void add_portable_counts(py::dict& metrics) {
  const auto counts = portable_counts();
  py::list traffic, fallbacks;
  for (const auto& [key, moved] : counts.traffic) {
    py::dict entry;
    entry["direction"] = key.first;
    entry["where"] = text_of(key.second);
    entry["count"] = moved.count;
    entry["bytes"] = moved.bytes;
    traffic.append(entry);
  }
  for (const auto& [key, count] : counts.fallbacks) {
    py::dict entry;
    entry["reason"] = key.first;
    entry["where"] = text_of(key.second);
    entry["count"] = count;
    fallbacks.append(entry);
  }
  metrics["traffic"] = traffic;
  metrics["fallbacks"] = fallbacks;
}

}  // namespace tiny
