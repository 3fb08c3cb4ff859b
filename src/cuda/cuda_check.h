// SPDX-License-Identifier: MIT
// CUDA runtime errors -> DeviceError, with the call, the error's name and text, and where.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "capillary/error.h"

namespace capillary::cuda {

[[noreturn]] inline void throw_cuda_error(cudaError_t error, const char* call, const char* file,
                                          int line) {
  (void)cudaGetLastError();  // a non-sticky error must not surface in the caller's next call
  throw DeviceError(std::string(call) + ": " + cudaGetErrorName(error) + ": " +
                    cudaGetErrorString(error) + " (" + file + ":" + std::to_string(line) + ")");
}

// Makes `device` current, and the one before it again at the end.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = -1;
};

}  // namespace capillary::cuda

#define CAPILLARY_CUDA(call)                                                           \
  do {                                                                                 \
    const cudaError_t capillary_error = (call);                                        \
    if (capillary_error != cudaSuccess)                                                \
      ::capillary::cuda::throw_cuda_error(capillary_error, #call, __FILE__, __LINE__); \
  } while (false)
