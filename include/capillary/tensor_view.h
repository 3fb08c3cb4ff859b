// SPDX-License-Identifier: MIT
// Non-owning strided views, DLPack-like but free of any framework header.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace capillary {

enum class DType : uint8_t { kFloat16 = 0, kBFloat16 = 1, kFloat32 = 2, kInt32 = 3, kInt64 = 4 };
enum class DeviceType : uint8_t { kCpu = 0, kCuda = 1 };

constexpr int dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kInt64:
      return 8;
  }
  return 0;
}

constexpr const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat32:
      return "float32";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
  }
  return "unknown";
}

// Shape and strides are in elements. A default-made view (data == nullptr, ndim == 0) means "absent".
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  DeviceType device = DeviceType::kCpu;
  int32_t device_index = 0;
  int32_t ndim = 0;
  std::array<int64_t, 5> shape{};
  std::array<int64_t, 5> strides{};

  bool present() const { return data != nullptr || ndim != 0; }
  int64_t numel() const {
    int64_t count = 1;
    for (int i = 0; i < ndim; ++i) count *= shape[static_cast<size_t>(i)];
    return count;
  }
};

}  // namespace capillary
