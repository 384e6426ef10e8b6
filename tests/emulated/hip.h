// HIP's words for g++; emulated_compiler.py replaces those that a macro cannot.
#include "kernel.h"
#define __builtin_amdgcn_s_barrier() emulated_barrier(__LINE__)
#define __builtin_amdgcn_fence(order, scope)
