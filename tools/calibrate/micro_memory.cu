// SPDX-License-Identifier: MIT
// Memory and L2 into shared memory by bulk copies (micro.h).
#include "calibrate/gpu.cuh"
#include "calibrate/micro.h"
#include "cuda/ptx.cuh"

namespace capillary::calibrate {

namespace {

constexpr uint32_t kPageBytes = 4096;
constexpr int kRings = 4;   // a CTA: one warp each
constexpr int kStages = 7;  // of a ring: 112 KiB in flight a CTA
// One copy takes microseconds at most; a wait of this many tries (each suspends a while) means something is wrong.
constexpr uint32_t kMostTries = 1u << 20;

// Places in no order: two copies that are on their way together have nothing to do with each other.
__device__ __forceinline__ uint32_t place_of(uint32_t index, uint32_t mask) {
  uint32_t x = index * 2654435761u;
  x ^= x >> 15;
  x *= 2246822519u;
  x ^= x >> 13;
  return x & mask;
}

__global__ void __launch_bounds__(32 * kRings)
    read_pages(const unsigned char* g_pages, uint32_t place_mask, uint32_t copies,
               uint32_t first_index) {
  extern __shared__ __align__(1024) unsigned char s_bytes[];
  __shared__ uint64_t s_full[kRings * kStages];
  if (threadIdx.x == 0) {
    for (int i = 0; i < kRings * kStages; ++i) ptx::mbarrier_init(s_full + i, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if ((threadIdx.x & 31u) != 0) return;
  const uint32_t ring = threadIdx.x / 32;
  unsigned char* s_ring = s_bytes + ring * kStages * kPageBytes;
  uint64_t* s_ring_full = s_full + ring * kStages;
  const uint32_t start = first_index + (blockIdx.x * kRings + ring) * copies;
  uint32_t stage = 0, parity = 1, tries = 0;
  // Past the last copy the ring is drained: shared memory must not be given back while bytes are on their way.
  for (uint32_t i = 0; i < copies + kStages; ++i) {
    if (i >= kStages)
      while (!ptx::mbarrier_try_wait_acquire_cta(s_ring_full + stage, parity))
        if (++tries > kMostTries) __trap();
    if (i < copies) {
      ptx::mbarrier_arrive_expect_tx(s_ring_full + stage, kPageBytes);
      ptx::cp_async_bulk(
          s_ring + stage * kPageBytes,
          g_pages + static_cast<uint64_t>(place_of(start + i, place_mask)) * kPageBytes, kPageBytes,
          s_ring_full + stage);
    }
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1u;
    }
  }
}

}  // namespace

struct PageReads::Impl {
  DeviceBytes pages{kHbmSpan};
};

PageReads::PageReads() : impl_(std::make_unique<Impl>()) {
  CAPILLARY_CUDA(cudaMemset(impl_->pages.get<void>(), 0x5a, static_cast<size_t>(kHbmSpan)));
  CAPILLARY_CUDA(cudaDeviceSynchronize());
}
PageReads::~PageReads() = default;

std::vector<double> PageReads::gbps(int num_ctas, int64_t span) {
  constexpr uint32_t kCopies = 1792;  // a ring: 28 MiB a CTA
  constexpr int kSmemBytes = kOneCtaBytes;
  static_assert(kRings * kStages * static_cast<int>(kPageBytes) <= kSmemBytes);
  allow_large_ctas(read_pages, 1, kSmemBytes);
  const auto mask = static_cast<uint32_t>(span / kPageBytes - 1);
  uint32_t first_index = 0;
  const std::vector<double> times = time_launches([&](cudaStream_t stream) {
    read_pages<<<static_cast<unsigned>(num_ctas), 32 * kRings, kSmemBytes, stream>>>(
        impl_->pages.get<unsigned char>(), mask, kCopies, first_index);
    first_index += static_cast<uint32_t>(num_ctas) * kRings * kCopies;
  });
  return rates(times, static_cast<double>(num_ctas) * kRings * kCopies * kPageBytes / 1e3);
}

}  // namespace capillary::calibrate
