// SPDX-License-Identifier: MIT
// The profile that is planned with: the caller's, or the one that is found.
#pragma once

#include <optional>
#include <string>

#include "capillary/device_profile.h"
#include "capillary/tensor_view.h"

namespace capillary::python {

struct ChosenProfile {
  DeviceProfile profile;
  std::string where;  // "the caller's", "built in", "/path (CAPILLARY_PROFILE)", ...
};

// `given`, else what CAPILLARY_PROFILE names, else this card's in the user's cache, else the built-in one. device: -1
// is the CPU, which has no card; on a CUDA device the cluster limits are its own, for (dtype, head_dim). Throws
// UnsupportedArch where the kernels do not run, InvalidArgument for a file that is no sound profile or a profile that
// is another card's.
ChosenProfile choose_profile(const char* function, const std::optional<DeviceProfile>& given,
                             int32_t device, DType dtype, int32_t head_dim);

}  // namespace capillary::python
