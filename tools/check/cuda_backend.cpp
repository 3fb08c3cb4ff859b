// SPDX-License-Identifier: MIT
// The CUDA backend as the checks see it: every buffer of the batch, fences included, goes to the device, the
// plan runs once, every buffer comes back. The workspace starts as 0xFF between guard bands of its own.
#include <cuda_runtime_api.h>

#include <array>
#include <cstring>
#include <vector>

#include "capillary/cuda.h"
#include "capillary/error.h"
#include "check/backend.h"
#include "check/cases.h"
#include "shared/tile_table.h"

namespace capillary::check {
namespace {

void require(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw DeviceError(std::string(what) + ": " + cudaGetErrorName(error) + ": " +
                      cudaGetErrorString(error));
}

class DeviceBytes {
 public:
  explicit DeviceBytes(size_t size) {
    require(cudaMalloc(&data_, size == 0 ? 1 : size), "cudaMalloc");
  }
  ~DeviceBytes() { (void)cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(int device) : device_(device) {
    cuda::require_supported(device);
    require(cudaSetDevice(device), "cudaSetDevice");
  }

  std::string name() const override { return "cuda"; }
  bool rounds_weights() const override { return true; }

  Support supports(const CheckCase& check_case) const override {
    const ModelShape& shape = check_case.shape;
    if (shape.dtype == DType::kFloat32) return {false, "float32 caches are for the CPU backend"};
    if (shape.v_dim() != shape.head_dim) return {false, "head_dim_v differs from head_dim"};
    try {
      const auto limits = cuda::max_clusters(device_, shape.dtype, shape.head_dim);
      const int index = cluster_size_index(std::max(check_case.options.cluster_size, 1));
      if (limits[static_cast<size_t>(index)] == 0)
        return {false, "clusters of " + std::to_string(check_case.options.cluster_size) +
                           " cannot be launched on this device"};
    } catch (const UnsupportedConfig& error) {
      return {false, error.what()};
    }
    return {};
  }

  void decode(const Plan& plan, const PrefixForest& /*forest*/, HostBatch& batch) override {
    std::vector<std::unique_ptr<DeviceBytes>> buffers;
    for (const HostBuffer& buffer : batch.buffers) {
      buffers.push_back(std::make_unique<DeviceBytes>(buffer.bytes.size()));
      require(cudaMemcpy(buffers.back()->data(), buffer.bytes.data(), buffer.bytes.size(),
                         cudaMemcpyHostToDevice),
              "copy to the device");
    }
    const auto view = [&](const HostTensor& tensor) {
      return tensor.view(buffers[tensor.buffer]->data(), DeviceType::kCuda, device_);
    };
    DecodeTensors tensors;
    tensors.q = view(batch.q);
    tensors.k_cache = view(batch.k_cache);
    tensors.v_cache = view(batch.v_cache);
    tensors.page_ids = view(batch.page_ids);
    tensors.out = view(batch.out);
    tensors.lse = view(batch.lse);

    constexpr size_t kGuard = 4096;
    const auto workspace_bytes = static_cast<size_t>(plan.workspace_bytes());
    DeviceBytes workspace(workspace_bytes + 2 * kGuard);
    require(cudaMemset(workspace.data(), 0xFF, workspace_bytes + 2 * kGuard), "cudaMemset");

    cuda::PlanBuffer buffer(plan.size_bytes(), device_);
    buffer.upload(plan, nullptr);
    cuda::decode(buffer, tensors, workspace.data() + kGuard, plan.workspace_bytes(), {}, nullptr);
    require(cudaDeviceSynchronize(), "decode");

    for (size_t i = 0; i < batch.buffers.size(); ++i)
      require(cudaMemcpy(batch.buffers[i].bytes.data(), buffers[i]->data(),
                         batch.buffers[i].bytes.size(), cudaMemcpyDeviceToHost),
              "copy from the device");
    std::array<unsigned char, kGuard> guard{};
    for (const size_t offset : {size_t{0}, kGuard + workspace_bytes}) {
      require(cudaMemcpy(guard.data(), workspace.data() + offset, kGuard, cudaMemcpyDeviceToHost),
              "copy from the device");
      for (const unsigned char byte : guard)
        if (byte != 0xFF) throw InternalError("decode: wrote outside its workspace");
    }
  }

 private:
  int device_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(int device) {
  return std::make_unique<CudaBackend>(device);
}

}  // namespace capillary::check
