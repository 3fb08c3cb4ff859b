// SPDX-License-Identifier: MIT
// The CUDA backend (NVIDIA Hopper, sm_90a). No CUDA header is needed: a stream is passed as void*
// (a cudaStream_t; nullptr is the legacy default stream). Only in builds with CUDA.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "capillary/decode.h"

namespace capillary::cuda {

struct DeviceInfo {
  int index = 0;
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int num_sms = 0;
  int clock_mhz = 0;  // the most the SMs are clocked at
  int64_t l2_bytes = 0;
  int64_t memory_bytes = 0;
  int driver_version = 0;  // as cudaDriverGetVersion gives it, 13000 for 13.0
  int runtime_version = 0;
};

int device_count();  // 0 where there is no driver or no device
DeviceInfo device_info(int device);
CardIdentity card_identity(int device);

// Throws UnsupportedArch (found, needed) unless the device can run the kernels.
void require_supported(int device);

// Kernel instances of this build: head_dims, for float16 and bfloat16 both.
std::string supported_combinations();

// Clusters of 1, 2, 4, 8 and 16 CTAs that can be resident at once, asked of the driver for the instance of
// (dtype, head_dim) and remembered; 0 where a size cannot be launched (MIG, MPS, green contexts). Of the current context, if
// that is the device's: make the green context current whose streams the launches will go to.
std::array<int32_t, kNumClusterSizes> max_clusters(int device, DType dtype, int head_dim);

// The profile with this card's own cluster limits. Throws InvalidArgument if it was measured on another card.
DeviceProfile profile_for_device(int device, DType dtype, int head_dim,
                                 const DeviceProfile& base = builtin_h200());

// A plan on the device, at an address that never changes: rewrite it with upload() and replay the graph.
// Uploads go through a ring of pinned host buffers, so neither another upload nor the destruction of the
// Plan can disturb a copy that a slow stream has not got to yet.
class PlanBuffer {
 public:
  // capacity_bytes: the largest plan this buffer will hold. Allocates; nothing after this does.
  explicit PlanBuffer(size_t capacity_bytes, int device = 0);
  ~PlanBuffer();
  PlanBuffer(PlanBuffer&&) noexcept;
  PlanBuffer& operator=(PlanBuffer&&) noexcept;

  // Asynchronous on `stream`. Once a launch of this buffer has been captured, later plans must keep its grid
  // (PlanOptions::fixed_grid plans do), heads, dims, page size and profile, and stay within its queries, page ids
  // and workspace. Throws InvalidArgument or WorkspaceTooSmall before copying.
  void upload(const Plan& plan, void* stream);
  // What the last upload brought.
  int64_t workspace_bytes() const;
  const void* device_data() const;
  int device() const;
  // Whether a launch of it is part of a CUDA graph, so that later plans are held to that.
  bool captured() const;

 private:
  friend void decode(PlanBuffer&, const DecodeTensors&, void*, int64_t, const DecodeOptions&,
                     void*);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Launches one kernel on `stream`; allocates nothing, synchronises nothing, copies nothing, and can be captured.
// workspace: device memory of at least plan.workspace_bytes(), 16-byte aligned, never zeroed by the caller;
// one workspace must not serve two runs at once. A stream of a green context wants that context to be current here, too.
// The contents of out and lse after an error are unspecified.
// Throws InvalidArgument, UnsupportedConfig, UnsupportedArch, WorkspaceTooSmall, DeviceError.
void decode(PlanBuffer& plan, const DecodeTensors& tensors, void* workspace,
            int64_t workspace_bytes, const DecodeOptions& options, void* stream);

}  // namespace capillary::cuda
