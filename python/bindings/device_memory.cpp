// SPDX-License-Identifier: MIT
#include "device_memory.h"

#include <utility>

#include "capillary/error.h"
#include "require_device.h"
#if CAPILLARY_WITH_CUDA
#include "cuda/cuda_check.h"
#endif

namespace capillary::python {

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      device_(other.device_) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(device_, other.device_);
  return *this;
}

#if CAPILLARY_WITH_CUDA

DeviceMemory::DeviceMemory(size_t bytes, int device) : bytes_(bytes), device_(device) {
  const cuda::DeviceGuard guard(device);
  CAPILLARY_CUDA(cudaMalloc(&data_, bytes));
}

DeviceMemory::~DeviceMemory() {
  if (data_ == nullptr) return;
  try {
    const cuda::DeviceGuard guard(device_);
    CAPILLARY_CUDA(cudaFree(data_));
  } catch (const DeviceError&) {
    // At the end of the process the context may be gone; then so is the memory.
  }
}

void copy_to_host(void* host, const void* device_data, size_t bytes, int device, void* stream) {
  if (bytes == 0) return;
  const cuda::DeviceGuard guard(device);
  auto* cuda_stream = static_cast<cudaStream_t>(stream);
  CAPILLARY_CUDA(cudaMemcpyAsync(host, device_data, bytes, cudaMemcpyDeviceToHost, cuda_stream));
  CAPILLARY_CUDA(cudaStreamSynchronize(cuda_stream));
}

bool is_capturing(void* stream, int device) {
  const cuda::DeviceGuard guard(device);
  cudaStreamCaptureStatus status{};
  CAPILLARY_CUDA(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status));
  return status != cudaStreamCaptureStatusNone;
}

#else

namespace {
[[noreturn]] void refuse() {
  require_device("capillary", 0);
  throw InternalError("capillary: device memory was asked for in a build without CUDA");
}
}  // namespace

DeviceMemory::DeviceMemory(size_t, int) {
  refuse();
}
DeviceMemory::~DeviceMemory() = default;
void copy_to_host(void*, const void*, size_t, int, void*) {
  refuse();
}
bool is_capturing(void*, int) {
  refuse();
}

#endif

}  // namespace capillary::python
