// SPDX-License-Identifier: MIT
// PlanBuffer: the device's copy of a plan and the pinned ring that feeds it.
#include <cstring>

#include "cuda/cuda_check.h"
#include "cuda/plan_buffer.h"

namespace capillary::cuda {

PlanBuffer::Impl::Impl(size_t capacity, int device_index)
    : device(device_index), capacity_bytes((capacity + 255) / 256 * 256) {
  require_supported(device);
  const DeviceGuard guard(device);
  try {
    CAPILLARY_CUDA(cudaMalloc(&g_plan, capacity_bytes));
    for (Staging& staging : ring) {
      CAPILLARY_CUDA(cudaMallocHost(&staging.host, capacity_bytes));
      CAPILLARY_CUDA(cudaEventCreateWithFlags(&staging.copied, cudaEventDisableTiming));
    }
  } catch (...) {
    release();
    throw;
  }
}

PlanBuffer::Impl::~Impl() {
  release();
}

void PlanBuffer::Impl::release() noexcept {
  // As DeviceGuard, without throwing: setting the device that is set already would take a green context away.
  int previous = -1;
  (void)cudaGetDevice(&previous);
  const bool other = previous != device;
  if (other) (void)cudaSetDevice(device);
  for (Staging& staging : ring) {
    if (staging.copied != nullptr) (void)cudaEventSynchronize(staging.copied);
    if (staging.copied != nullptr) (void)cudaEventDestroy(staging.copied);
    if (staging.host != nullptr) (void)cudaFreeHost(staging.host);
  }
  if (g_plan != nullptr) (void)cudaFree(g_plan);
  if (other && previous >= 0) (void)cudaSetDevice(previous);
  (void)cudaGetLastError();
}

PlanBuffer::PlanBuffer(size_t capacity_bytes, int device)
    : impl_(std::make_unique<Impl>(capacity_bytes, device)) {}
PlanBuffer::~PlanBuffer() = default;
PlanBuffer::PlanBuffer(PlanBuffer&&) noexcept = default;
PlanBuffer& PlanBuffer::operator=(PlanBuffer&&) noexcept = default;

void PlanBuffer::upload(const Plan& plan, void* stream) {
  Impl& self = *impl_;
  if (plan.empty())
    throw InvalidArgument(five_parts("PlanBuffer::upload", "plan", "is empty",
                                     "come from a Planner", "call Planner::plan first"));
  const size_t bytes = plan.size_bytes();
  if (bytes > self.capacity_bytes)
    throw InvalidArgument(five_parts(
        "PlanBuffer::upload", "plan", "has " + std::to_string(bytes) + " bytes",
        "have at most " + std::to_string(self.capacity_bytes) + " (the buffer's capacity)",
        "make a larger PlanBuffer"));
  const PlanHeader& header = PlanView(plan.data()).header();
  if (self.captured) check_replay(header, *self.captured);
  const DeviceGuard guard(self.device);
  Impl::Staging& staging = self.ring[self.next];
  self.next = (self.next + 1) % self.ring.size();
  // Blocks only when kRing uploads are still waiting in their streams.
  CAPILLARY_CUDA(cudaEventSynchronize(staging.copied));
  std::memcpy(staging.host, plan.data(), bytes);
  CAPILLARY_CUDA(cudaMemcpyAsync(self.g_plan, staging.host, bytes, cudaMemcpyHostToDevice,
                                 static_cast<cudaStream_t>(stream)));
  CAPILLARY_CUDA(cudaEventRecord(staging.copied, static_cast<cudaStream_t>(stream)));
  std::memcpy(&self.header, plan.data(), sizeof(PlanHeader));
  self.uploaded = true;
}

int64_t PlanBuffer::workspace_bytes() const {
  const PlanHeader& header = impl_->header;
  return workspace_layout(header.num_kv_heads, header.split_rows, header.head_dim_v).total_bytes;
}
const void* PlanBuffer::device_data() const {
  return impl_->g_plan;
}
int PlanBuffer::device() const {
  return impl_->device;
}
bool PlanBuffer::captured() const {
  return impl_->captured.has_value();
}

}  // namespace capillary::cuda
