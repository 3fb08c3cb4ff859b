// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "capillary/error.h"
#if CAPILLARY_WITH_CUDA
#include "capillary/cuda.h"
#endif

namespace capillary::python {

// Throws UnsupportedArch unless this build and CUDA device `device` can run the kernels. alternative: what `device`
// could be instead, for the message.
inline void require_device(const char* function, int device, const char* alternative = "'cpu'") {
  const std::string came = "is cuda:" + std::to_string(device);
  const std::string instead = std::string("be ") + alternative + ": ";
#if CAPILLARY_WITH_CUDA
  const int count = cuda::device_count();
  if (device < 0 || device >= count)
    throw UnsupportedArch(
        five_parts(function, "device", came,
                   count == 0 ? instead + "no CUDA device was found"
                              : "be one of cuda:0 to cuda:" + std::to_string(count - 1),
                   "check the driver and CUDA_VISIBLE_DEVICES"),
        std::to_string(count) + " devices", "a Hopper GPU (sm_90a)");
  cuda::require_supported(device);
#else
  throw UnsupportedArch(
      five_parts(function, "device", came, instead + "this package was built without CUDA",
                 "build it where nvcc is found"),
      "a build without CUDA", "a build with CUDA");
#endif
}

}  // namespace capillary::python
