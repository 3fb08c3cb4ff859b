// SPDX-License-Identifier: MIT
// What the device can do, and which kernel instances this build has.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <map>
#include <mutex>
#include <tuple>

#include "capillary/cuda.h"
#include "cuda/cuda_check.h"
#include "cuda/dispatch.h"

namespace capillary::tree_decode {
#define CAPILLARY_INSTANCE(dtype, head_dim) \
  template <>                               \
  KernelInstance kernel_instance<dtype, head_dim>();
#include "cuda/tree_decode/instances.inc"
#undef CAPILLARY_INSTANCE
}  // namespace capillary::tree_decode

namespace capillary::cuda {

namespace {

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<__half>() {
  return DType::kFloat16;
}
template <>
constexpr DType dtype_of<__nv_bfloat16>() {
  return DType::kBFloat16;
}

struct Row {
  DType dtype;
  int head_dim;
  tree_decode::KernelInstance (*instance)();
};

const Row kInstances[] = {
#define CAPILLARY_INSTANCE(dtype, head_dim) \
  {dtype_of<dtype>(), head_dim, &tree_decode::kernel_instance<dtype, head_dim>},
#include "cuda/tree_decode/instances.inc"
#undef CAPILLARY_INSTANCE
};

// The current context. A green context has a part of the SMs, hence limits of its own, and functions' attributes are
// a context's. 0: none, or a driver before R525.
unsigned long long current_context() {
  using GetId = CUresult (*)(CUcontext, unsigned long long*);
  static const GetId get_id = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    if (cudaGetDriverEntryPointByVersion("cuCtxGetId", &entry, 12000, cudaEnableDefault, &found) !=
        cudaSuccess) {
      (void)cudaGetLastError();
      entry = nullptr;
    }
    return reinterpret_cast<GetId>(entry);
  }();
  unsigned long long id = 0;
  return get_id != nullptr && get_id(nullptr, &id) == CUDA_SUCCESS ? id : 0;
}

}  // namespace

DeviceGuard::DeviceGuard(int device) {
  int current = -1;
  CAPILLARY_CUDA(cudaGetDevice(&current));
  if (current == device) return;
  CAPILLARY_CUDA(cudaSetDevice(device));
  previous_ = current;
}
DeviceGuard::~DeviceGuard() {
  if (previous_ >= 0) (void)cudaSetDevice(previous_);
}

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return count;
}

DeviceInfo device_info(int device) {
  cudaDeviceProp properties{};
  CAPILLARY_CUDA(cudaGetDeviceProperties(&properties, device));
  DeviceInfo info;
  info.index = device;
  info.name = properties.name;
  info.compute_major = properties.major;
  info.compute_minor = properties.minor;
  info.num_sms = properties.multiProcessorCount;
  int clock_khz = 0;
  CAPILLARY_CUDA(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, device));
  info.clock_mhz = clock_khz / 1000;
  info.l2_bytes = properties.l2CacheSize;
  info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  CAPILLARY_CUDA(cudaDriverGetVersion(&info.driver_version));
  CAPILLARY_CUDA(cudaRuntimeGetVersion(&info.runtime_version));
  return info;
}

CardIdentity card_identity(int device) {
  const DeviceInfo info = device_info(device);
  return {info.name, info.num_sms, info.clock_mhz};
}

void require_supported(int device) {
  int major = 0, minor = 0;
  CAPILLARY_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  CAPILLARY_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  if (major == 9 && minor == 0) return;
  const std::string found = "sm_" + std::to_string(major) + std::to_string(minor);
  throw UnsupportedArch(
      five_parts("cuda::decode", "device", "is " + found, "be sm_90 (Hopper: H100, H200, GH200)",
                 "run on such a card or use the CPU backend"),
      found, "sm_90");
}

std::string supported_combinations() {
  std::string text;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    if (!text.empty()) text += "; ";
    text += std::string(dtype_name(dtype)) + " head_dim";
    const char* separator = " ";
    for (const Row& row : kInstances) {
      if (row.dtype != dtype) continue;
      text += separator + std::to_string(row.head_dim);
      separator = ", ";
    }
  }
  return text;
}

tree_decode::KernelInstance find_instance(const char* function, DType dtype, int head_dim) {
  for (const Row& row : kInstances)
    if (row.dtype == dtype && row.head_dim == head_dim) return row.instance();
  throw UnsupportedConfig(five_parts(
      function, "q",
      std::string("is ") + dtype_name(dtype) + " with head_dim " + std::to_string(head_dim),
      "be one of: " + supported_combinations(), "pad head_dim, convert, or use the CPU backend"));
}

void prepare_instance(int device, const tree_decode::KernelInstance& instance) {
  static std::mutex mutex;
  static std::map<std::tuple<int, unsigned long long, const void*>, bool> prepared;
  const std::lock_guard lock(mutex);
  bool& done = prepared[{device, current_context(), instance.function}];
  if (done) return;
  CAPILLARY_CUDA(cudaFuncSetAttribute(instance.function,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(instance.smem_bytes)));
  CAPILLARY_CUDA(
      cudaFuncSetAttribute(instance.function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  done = true;
}

std::array<int32_t, kNumClusterSizes> max_clusters(int device, DType dtype, int head_dim) {
  using Key = std::tuple<int, unsigned long long, DType, int>;
  static std::mutex mutex;
  static std::map<Key, std::array<int32_t, kNumClusterSizes>> known;
  const std::lock_guard lock(mutex);
  require_supported(device);
  const DeviceGuard guard(device);
  const Key key{device, current_context(), dtype, head_dim};
  if (const auto found = known.find(key); found != known.end()) return found->second;
  const tree_decode::KernelInstance instance = find_instance("cuda::max_clusters", dtype, head_dim);
  prepare_instance(device, instance);
  std::array<int32_t, kNumClusterSizes> clusters{};
  for (int index = 0; index < kNumClusterSizes; ++index) {
    const auto cluster_size = static_cast<unsigned>(1 << index);
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster_size;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(cluster_size * 256);
    config.blockDim = dim3(instance.threads);
    config.dynamicSmemBytes = instance.smem_bytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int count = 0;
    if (cudaOccupancyMaxActiveClusters(&count, instance.function, &config) != cudaSuccess) {
      (void)cudaGetLastError();
      count = 0;
    }
    clusters[static_cast<size_t>(index)] = count;
  }
  known[key] = clusters;
  return clusters;
}

DeviceProfile profile_for_device(int device, DType dtype, int head_dim, const DeviceProfile& base) {
  const CardIdentity card = card_identity(device);
  require_profile_fits(base, card);
  DeviceProfile profile = base;
  profile.max_clusters = max_clusters(device, dtype, head_dim);
  profile.num_sms = card.num_sms;
  return profile;
}

}  // namespace capillary::cuda
