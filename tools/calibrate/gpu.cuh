// SPDX-License-Identifier: MIT
// What the micro-benchmarks share: device memory, timing by events, cluster launches.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "cuda/cuda_check.h"

namespace capillary::calibrate {

inline constexpr int kRepeats = 7;
// More than half of an SM's shared memory: one CTA an SM.
inline constexpr int kOneCtaBytes = 120 << 10;

class DeviceBytes {
 public:
  explicit DeviceBytes(int64_t size) {
    CAPILLARY_CUDA(cudaMalloc(&data_, static_cast<size_t>(size)));
  }
  ~DeviceBytes() { (void)cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  template <class T>
  T* get() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

class Event {
 public:
  Event() { CAPILLARY_CUDA(cudaEventCreate(&event_)); }
  ~Event() { (void)cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class Stream {
 public:
  Stream() { CAPILLARY_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// Microseconds of each of kRepeats calls of launch(stream), after two that warm up.
template <class Launch>
std::vector<double> time_launches(const Launch& launch) {
  const Stream stream;
  const Event begin, end;
  std::vector<double> times;
  for (int i = -2; i < kRepeats; ++i) {
    CAPILLARY_CUDA(cudaEventRecord(begin.get(), stream.get()));
    launch(stream.get());
    CAPILLARY_CUDA(cudaGetLastError());
    CAPILLARY_CUDA(cudaEventRecord(end.get(), stream.get()));
    CAPILLARY_CUDA(cudaEventSynchronize(end.get()));
    float milliseconds = 0;
    CAPILLARY_CUDA(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
    if (i >= 0) times.push_back(static_cast<double>(milliseconds) * 1e3);
  }
  return times;
}

// amount / time, for each of the times.
inline std::vector<double> rates(const std::vector<double>& times, double amount) {
  std::vector<double> result;
  for (const double time : times) result.push_back(amount / time);
  return result;
}

template <class Kernel>
void allow_large_ctas(Kernel kernel, int cluster_size, int smem_bytes) {
  CAPILLARY_CUDA(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes));
  if (cluster_size > 8)
    CAPILLARY_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
}

// The attribute must outlive the configuration that points to it.
struct ClusterConfig {
  cudaLaunchAttribute attribute{};
  cudaLaunchConfig_t config{};

  ClusterConfig(int cluster_size, int num_clusters, int threads, int smem_bytes,
                cudaStream_t stream) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(cluster_size);
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    config.gridDim = dim3(static_cast<unsigned>(cluster_size * num_clusters));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(smem_bytes);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
  }
  ClusterConfig(const ClusterConfig&) = delete;
  ClusterConfig& operator=(const ClusterConfig&) = delete;
};

}  // namespace capillary::calibrate
