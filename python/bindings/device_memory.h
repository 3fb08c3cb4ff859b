// SPDX-License-Identifier: MIT
// The little device memory the package itself needs: workspaces, and tables copied to the host. Builds
// without CUDA have the same names and refuse.
#pragma once

#include <cstddef>
#include <cstdint>

namespace capillary::python {

// Owned, never initialised. Freeing waits for the device, so work in flight still finds it.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(size_t bytes, int device);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;

  void* data() const { return data_; }
  int64_t size_bytes() const { return static_cast<int64_t>(bytes_); }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  int device_ = 0;
};

// Enqueues the copy on `stream` and waits for it. Throws DeviceError.
void copy_to_host(void* host, const void* device_data, size_t bytes, int device, void* stream);

bool is_capturing(void* stream, int device);

}  // namespace capillary::python
