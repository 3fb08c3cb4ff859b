// SPDX-License-Identifier: MIT
// The part of DLPack's C interface (version 1) that arrays are read through. Written out here because the
// structs are a stable binary interface, and a header of another project would be a dependency for 60 lines.
#pragma once

#include <cstdint>

namespace capillary::python::dlpack {

inline constexpr uint32_t kMajorVersion = 1;
inline constexpr uint64_t kFlagReadOnly = 1;

// Device types that are host or CUDA memory; nothing else is taken.
inline constexpr int32_t kCpu = 1;
inline constexpr int32_t kCuda = 2;
inline constexpr int32_t kCudaHost = 3;
inline constexpr int32_t kCudaManaged = 13;

// Type codes.
inline constexpr uint8_t kInt = 0;
inline constexpr uint8_t kUInt = 1;
inline constexpr uint8_t kFloat = 2;
inline constexpr uint8_t kBFloat = 4;

struct Device {
  int32_t type;
  int32_t index;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // elements; null: row-major
  uint64_t byte_offset;
};

struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

struct Version {
  uint32_t major;
  uint32_t minor;
};

struct ManagedTensorVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedTensorVersioned*);
  uint64_t flags;
  Tensor tensor;
};

// Function table that an array type may offer as `__dlpack_c_exchange_api__`: a view without a capsule and
// without synchronising, and the framework's current stream.
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;
  void* allocate;
  int (*managed_from_object)(void* object, ManagedTensorVersioned** out);
  void* managed_to_object;
  int (*view_of_object)(void* object, Tensor* out);  // may be null
  int (*current_stream)(int32_t device_type, int32_t device_index, void** out);
};

}  // namespace capillary::python::dlpack
