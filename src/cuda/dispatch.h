// SPDX-License-Identifier: MIT
// Instance look-up, shared by the capability queries and by decode.
#pragma once

#include "capillary/tensor_view.h"
#include "cuda/tree_decode/launch.h"

namespace capillary::cuda {

// Throws UnsupportedConfig listing what is built; `function` opens the message.
tree_decode::KernelInstance find_instance(const char* function, DType dtype, int head_dim);

// Shared memory and cluster attributes of an instance on the current device; once each.
void prepare_instance(int device, const tree_decode::KernelInstance& instance);

}  // namespace capillary::cuda
