// SPDX-License-Identifier: MIT
// What the generated instance files define and the dispatch table holds: one kernel a (dtype, head_dim).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/tree_decode/kernel.cuh"
#include "cuda/tree_decode/launch.h"

#define CAPILLARY_INSTANTIATE(dtype, head_dim)                                                \
  namespace capillary::tree_decode {                                                          \
  using InstanceTraits = Traits<dtype, head_dim>;                                             \
  static_assert(sizeof(Storage<InstanceTraits>) <= 227 * 1024, "shared memory of one block"); \
  template <>                                                                                 \
  KernelInstance kernel_instance<dtype, head_dim>() {                                         \
    return {reinterpret_cast<const void*>(&tree_decode_kernel<InstanceTraits>),               \
            static_cast<uint32_t>(sizeof(Storage<InstanceTraits>)),                           \
            static_cast<uint32_t>(InstanceTraits::kThreads)};                                 \
  }                                                                                           \
  }
