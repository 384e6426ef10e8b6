#include "memory/shared.h"

#include <atomic>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace tiny {
namespace {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

// Never destroyed: tensors may be dropped while the process ends.
struct State {
  std::mutex mutex;
  std::map<std::pair<c10::DeviceIndex, uintptr_t>, WeakStorage> known;
  size_t most_known = 64;  // before those that have died are looked for
  std::vector<c10::Storage> on_host;
};

State& state() {
  static auto* the = new State;
  return *the;
}

std::atomic<bool> any_on_host{false};

TinyStorage& tiny_of(const c10::Storage& storage) {
  return *static_cast<TinyStorage*>(storage.unsafeGetStorageImpl());
}

void send_home(c10::DeviceIndex index) {
  if (C10_LIKELY(!any_on_host.load(std::memory_order_relaxed))) {
    return;
  }
  std::vector<c10::Storage> touched;
  {
    std::lock_guard lock(state().mutex);
    auto& all = state().on_host;
    const auto others = std::partition(all.begin(), all.end(), [&](const c10::Storage& storage) {
      return storage.device().index() != index;
    });
    touched.assign(std::make_move_iterator(others), std::make_move_iterator(all.end()));
    all.erase(others, all.end());
    any_on_host = !all.empty();
  }
  for (const auto& storage : touched) {
    tiny_of(storage).leave_host();
  }
}

}  // namespace

void share_storage(const c10::Storage& storage) {
  const auto memory = tiny_of(storage).share();
  std::lock_guard lock(state().mutex);
  auto& known = state().known;
  if (known.size() >= state().most_known) {
    for (auto entry = known.begin(); entry != known.end();) {
      entry = entry->second.expired() ? known.erase(entry) : std::next(entry);
    }
    state().most_known = 64 + 2 * known.size();
  }
  auto weak = WeakStorage(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage.unsafeGetStorageImpl()));
  known.insert_or_assign({storage.device().index(), memory}, std::move(weak));
}

std::optional<c10::Storage> find_shared(c10::DeviceIndex index, uintptr_t memory) {
  std::lock_guard lock(state().mutex);
  const auto found = state().known.find({index, memory});
  if (found == state().known.end()) {
    return std::nullopt;
  }
  auto storage = found->second.lock();
  if (!storage || static_cast<TinyStorage&>(*storage).shared_memory() != memory) {
    state().known.erase(found);
    return std::nullopt;
  }
  return c10::Storage(std::move(storage));
}

at::Tensor adopt_shared_buffer(
    c10::DeviceIndex index, Buffer buffer, size_t nbytes, c10::ScalarType dtype) {
  check_type(index, dtype);
  const auto size = static_cast<int64_t>(nbytes / c10::elementSize(dtype));
  auto tensor = make_tensor(index, nbytes, {size}, {1}, 0, dtype);
  TinyStorage::of(tensor).adopt_buffer(buffer);
  share_storage(tensor.storage());
  return tensor;
}

void note_on_host(TinyStorage& storage) {
  std::lock_guard lock(state().mutex);
  state().on_host.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage));
  any_on_host = true;
}

void with_shared_home(c10::DeviceIndex index, c10::function_ref<void()> body) {
  try {
    body();
  } catch (...) {
    send_home(index);
    throw;
  }
  send_home(index);
}

}  // namespace tiny
