// SPDX-License-Identifier: MIT
// The seam between host code and the kernel instances.
#pragma once

#include <cstdint>

namespace capillary::tree_decode {

struct KernelInstance {
  const void* function;
  uint32_t smem_bytes;
  uint32_t threads;
};

// Defined once by each generated instance file.
template <class T, int kHeadDim>
KernelInstance kernel_instance();

}  // namespace capillary::tree_decode
