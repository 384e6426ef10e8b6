// Memory shared with tinygrad. It stays where it is: kernels write it in place, and it cannot be
// resized. On a portable device tinygrad may write it at any time, so a copy on the host is trusted
// only while one body of the queue runs.
#pragma once

#include <c10/util/FunctionRef.h>

#include <optional>

#include "memory/storage.h"

namespace tiny {

// From now on this memory is shared. With the queue of its device locked.
void share_storage(const c10::Storage& storage);

// The living storage over memory that was shared: a buffer's number, or an address of the host.
std::optional<c10::Storage> find_shared(c10::DeviceIndex index, uintptr_t memory);

// A tensor over a buffer of tinygrad's, all of it.
at::Tensor adopt_shared_buffer(
    c10::DeviceIndex index, Buffer buffer, size_t nbytes, c10::ScalarType dtype);

// Notes that the host has a copy of a shared buffer, and may have written it.
void note_on_host(TinyStorage& storage);
// Runs `body`; what it wrote on the host to shared buffers is in them afterwards.
void with_shared_home(c10::DeviceIndex index, c10::function_ref<void()> body);

}  // namespace tiny
