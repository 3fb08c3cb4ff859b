// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <optional>

#include "capillary/cuda.h"
#include "core/captured_launch.h"
#include "shared/plan_layout.h"

namespace capillary::cuda {

struct PlanBuffer::Impl {
  static constexpr size_t kRing = 4;
  struct Staging {
    void* host = nullptr;          // pinned
    cudaEvent_t copied = nullptr;  // the copy out of `host` is done
  };

  Impl(size_t capacity, int device_index);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  void release() noexcept;

  int device;
  size_t capacity_bytes;
  void* g_plan = nullptr;
  std::array<Staging, kRing> ring{};
  size_t next = 0;
  PlanHeader header{};  // of the last upload: what decode checks and sizes the grid by
  bool uploaded = false;
  std::optional<CapturedLaunch> captured;  // the first launch of this buffer in a graph
};

}  // namespace capillary::cuda
