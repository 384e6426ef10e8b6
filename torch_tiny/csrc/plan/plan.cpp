#include "plan/plan.h"

#include <algorithm>

namespace tiny {
namespace {

// A slot that only the trace refers to is a temporary, unless tinygrad will look at its memory.
// Nobody can refer to it again, but others may be let go of at any time: this is asked once.
bool is_temporary(const c10::intrusive_ptr<TinyStorage>& storage) {
  return storage.use_count() == 1 && !storage->is_shared();
}

constexpr size_t kWordsOfSlot = 2;

void write_words(const Trace& trace, std::vector<uint64_t>& words) {
  words.clear();
  for (const auto& call : trace.calls) {
    words.push_back(call.signature->id);
    words.push_back(call.first_fresh);
    const auto tensors = call.signature->specs.size();
    for (size_t i = 0; i < tensors; ++i) {
      const auto& use = trace.uses[call.first_use + i];
      words.push_back(use.slot);
      words.push_back(static_cast<uint64_t>(use.offset));
    }
  }
  for (const auto& storage : trace.slots) {
    words.push_back(is_temporary(storage));
    // Compiled code is about all of a storage, however little of it a call sees.
    words.push_back(storage ? storage->nbytes() : 0);
  }
  std::atomic_thread_fence(std::memory_order_acquire);  // after what those who let go had done
}

std::shared_ptr<Plan> make_plan(const Trace& trace, std::vector<uint64_t> words) {
  static std::atomic<uint64_t> next_id{1};
  auto made = std::make_shared<Plan>();
  auto& plan = *made;
  plan.id = next_id.fetch_add(1);
  plan.words = std::move(words);
  const auto* slot_words =
      plan.words.data() + plan.words.size() - kWordsOfSlot * trace.slots.size();
  std::vector<uint32_t> last_use(trace.slots.size(), 0);
  for (size_t i = 0; i < trace.calls.size(); ++i) {
    const auto& call = trace.calls[i];
    plan.signatures.push_back(call.signature);
    for (size_t k = 0; k < call.signature->specs.size(); ++k) {
      last_use[trace.uses[call.first_use + k].slot] = static_cast<uint32_t>(i);
    }
    for (size_t k = 0; k < call.signature->results.size(); ++k) {
      last_use[call.first_fresh + k] = static_cast<uint32_t>(i);
    }
  }
  std::vector<std::vector<uint32_t>> ending(trace.calls.size());
  for (size_t slot = 0; slot < trace.slots.size(); ++slot) {
    plan.temporary.push_back(slot_words[kWordsOfSlot * slot] != 0);
    if (plan.temporary.back()) {
      ending[last_use[slot]].push_back(static_cast<uint32_t>(slot));
    }
  }
  for (const auto& slots : ending) {
    plan.release_begin.push_back(static_cast<uint32_t>(plan.release.size()));
    plan.release.insert(plan.release.end(), slots.begin(), slots.end());
  }
  plan.release_begin.push_back(static_cast<uint32_t>(plan.release.size()));
  return made;
}

}  // namespace

std::shared_ptr<const Plan> PlanCache::find(const Trace& trace, bool& hit) {
  std::lock_guard lock(mutex_);
  write_words(trace, words_);
  const auto hash = hash_words(words_.size(), words_);
  auto found = plans_.find(hash);
  hit = found != plans_.end() && found->second->words == words_;
  if (!hit) {
    if (plans_.size() >= most_plans.load(std::memory_order_relaxed)) {
      drop_old();
    }
    found = plans_.insert_or_assign(hash, make_plan(trace, words_)).first;
  }
  found->second->last_used = std::chrono::steady_clock::now();
  return found->second;
}

std::vector<PlanCache::Plans::iterator> PlanCache::from_recent_to_old() {
  std::vector<Plans::iterator> order;
  for (auto entry = plans_.begin(); entry != plans_.end(); ++entry) {
    order.push_back(entry);
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a->second->last_used > b->second->last_used;
  });
  return order;
}

void PlanCache::drop_old() {
  const auto order = from_recent_to_old();
  for (auto i = order.size() - order.size() / 8; i < order.size(); ++i) {
    plans_.erase(order[i]);
  }
}

std::unordered_set<const Signature*> PlanCache::keep_recent(size_t most) {
  std::lock_guard lock(mutex_);
  std::unordered_set<const Signature*> kept;
  for (const auto& entry : from_recent_to_old()) {
    const auto& needed = entry->second->signatures;
    if (kept.size() + needed.size() > most) {
      most = 0;  // nor any older one
      plans_.erase(entry);
    } else {
      kept.insert(needed.begin(), needed.end());
    }
  }
  return kept;
}

void PlanCache::add_moments(std::vector<Moment>& moments) const {
  for_each([&](const Plan& plan) { moments.push_back(plan.last_used); });
}

void PlanCache::drop_older(Moment moment) {
  std::vector<std::shared_ptr<const Plan>> dropped;  // without the lock
  std::lock_guard lock(mutex_);
  std::erase_if(plans_, [&](const auto& entry) {
    const bool is_old = entry.second->last_used < moment;
    if (is_old) {
      dropped.push_back(entry.second);
    }
    return is_old;
  });
}

std::shared_ptr<const Plan> PlanCache::by_id(uint64_t id) const {
  std::lock_guard lock(mutex_);
  for (const auto& [hash, plan] : plans_) {
    if (plan->id == id) {
      return plan;
    }
  }
  return nullptr;
}

}  // namespace tiny
