// Running one trace on real memory: its calls in order, or the steps of its compiled plan.
#pragma once

#include <ATen/core/stack.h>

#include <exception>
#include <forward_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/arguments.h"
#include "plan/plan.h"

namespace tiny {

class Runner {
 public:
  Runner(Trace& trace, const Plan& plan, c10::DeviceIndex device);

  void run();
  // Uses this memory for a slot in place of its own. Before running.
  void place(uint32_t slot, c10::Storage memory);
  // Nothing is run: all results of the trace raise this.
  void fail_all(const std::string& why);

  std::exception_ptr failure;  // the first one
  uint64_t relayouts = 0;
  uint64_t products = 0;  // by oneDNN in place of the operator

 private:
  // What a slot holds while its trace runs.
  struct SlotState {
    at::Tensor tensor;  // the last stand-in that was made; usually the next call wants the same
    const Spec* spec = nullptr;
    int64_t offset = 0;
    c10::Storage memory;  // of a temporary
    std::exception_ptr failure;
  };

  void run_steps(Compiled& compiled);
  // All of a call, or a part of its lists.
  void run_one(const Call& call, Part part = {});
  void run_call(const Call& call, Part part);
  // See runner_lists.cpp.
  size_t lists_end(size_t begin);
  void run_lists(size_t begin, size_t end);
  void run_region(Region& region);
  void run_kernels_of(const Region& region);
  bool run_compiled(const Region& region);
  void run_refused(const Region& region);
  void run_portable(const Region& region);
  void run_on_host(const Region& region, const std::exception_ptr& why, size_t nbytes);
  void run_calls(const Region& region);
  void validate(const Region& region);
  void release(uint32_t slot);
  bool has_failed(const Region& region) const;
  void* pointer(const RegionBuffer& buffer);
  std::string_view number(const RegionBuffer& buffer);
  c10::Storage memory_of(uint32_t slot);
  const at::Tensor& stand_in(const Use& use, const Spec& spec, Access access = Access::kWrite);
  void take_result(const Call& call, size_t index, at::Tensor tensor);
  std::exception_ptr failed_input(const Call& call) const;
  void fail(const Call& call, const std::exception_ptr& why);

  Trace& trace_;
  const Plan& plan_;
  const c10::DeviceIndex device_;
  const c10::Device host_;
  const bool is_portable_;
  const int threads_;          // of kernels on cpu memory
  size_t failures_ = 0;        // calls that raised
  bool has_two_ways_ = false;  // of matrix products
  bool is_raising_ = false;    // a call is known to raise: it does so on the host
  std::vector<SlotState> states_;
  std::vector<uint32_t> place_;  // of slots in the lists of some calls
  c10::Stack stack_;
  std::forward_list<uint64_t> numbers_;  // that kernels read; their addresses stay
};

}  // namespace tiny
