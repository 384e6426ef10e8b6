// Random numbers of a tiny device: a generator of the memory's own device behind a tiny face, or
// the portable stream, whose numbers depend on the seed and the order of calls alone.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>

#include "base/device.h"
#include "random/philox.h"

namespace tiny {

enum class RandomSource : uint8_t {
  kDefault,   // CPU memory has the CPU's numbers, all other devices the portable stream
  kPortable,  // all devices have the portable stream
  kHost,      // cpu and cuda memory have PyTorch's own numbers
};

// Called once, before there are generators.
void choose_source(RandomSource source);
// What runs all that was recorded on a device: calls draw before the state is read or changed.
void run_before_states(void (*run)(c10::DeviceIndex));
// Whether tiny:index draws from the portable stream.
bool has_portable_numbers(c10::DeviceIndex index);

const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator make_generator(c10::DeviceIndex index);

// What a call draws from: a generator of the memory's device that is read when it runs, or the
// seed and offset of the portable stream, taken now and by nobody else.
c10::IValue numbers_of(c10::DeviceIndex index);
c10::IValue numbers_of(const at::Generator& generator);

// Of what `numbers_of` gave: seed and offset, where it is the portable stream.
inline bool is_draw(const c10::IValue& numbers) {
  return numbers.isIntList();
}
Draw draw_of(const c10::IValue& numbers);

// A generator of the memory's device for kernels that know no other: it starts from the draw.
at::Generator host_generator(c10::DeviceIndex index, const Draw& draw);
// What is behind the default generator of tiny:index where its numbers are not portable.
at::Generator host_generator(c10::DeviceIndex index);

}  // namespace tiny
