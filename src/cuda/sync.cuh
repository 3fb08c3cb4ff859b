// SPDX-License-Identifier: MIT
// Barriers with names. A wait that never ends is the worst bug a kernel can have, so checked builds
// (CAPILLARY_CUDA_CHECKS) give every wait a cycle limit and trap after naming barrier, stage and place.
#pragma once

#include <cstdint>
#include <cstdio>

#include "cuda/ptx.cuh"

namespace capillary {

// Hardware barriers of a CTA; id 0 is __syncthreads.
enum class NamedBarrier : uint32_t {
  kConsumers = 1,
  kWarpgroup0 = 2,
  kWarpgroup1 = 3,
  kLoaders = 4
};

enum class Wait : int {
  kKFull,
  kVFull,
  kStageEmpty,
  kProgramFull,
  kProgramEmpty,
  kSlotsReady,
  kSlotsFree,
  kRowsLanded
};

#ifdef CAPILLARY_CUDA_CHECKS
inline constexpr long long kWaitLimitCycles = 400'000'000;  // 0.2 s
inline __device__ __noinline__ void wait_timed_out(Wait what, uint32_t index, uint32_t parity) {
  constexpr const char* kNames[] = {"k_full",        "v_full",      "stage_empty", "program_full",
                                    "program_empty", "slots_ready", "slots_free",  "rows_landed"};
  printf("capillary: wait timed out: %s[%u] parity %u, block %d rank %u thread %d\n",
         kNames[static_cast<int>(what)], index, parity, static_cast<int>(blockIdx.x),
         ptx::cluster_ctarank(), static_cast<int>(threadIdx.x));
  __trap();
}
#define CAPILLARY_WAIT_LOOP(condition, what, index, parity) \
  for (const long long begin = clock64(); !(condition);)    \
    if (clock64() - begin > kWaitLimitCycles) wait_timed_out(what, index, parity)
#else
#define CAPILLARY_WAIT_LOOP(condition, what, index, parity) \
  while (!(condition)) {                                    \
  }
#endif

__device__ __forceinline__ void wait_cta(uint64_t* s_barriers, uint32_t index, uint32_t parity,
                                         [[maybe_unused]] Wait what) {
  CAPILLARY_WAIT_LOOP(ptx::mbarrier_try_wait_acquire_cta(s_barriers + index, parity), what, index,
                      parity);
}
__device__ __forceinline__ void wait_cluster(uint64_t* s_barrier, uint32_t parity,
                                             [[maybe_unused]] Wait what) {
  CAPILLARY_WAIT_LOOP(ptx::mbarrier_try_wait_acquire_cluster(s_barrier, parity), what, 0, parity);
}
#undef CAPILLARY_WAIT_LOOP

__device__ __forceinline__ void named_sync(NamedBarrier barrier, uint32_t threads) {
  ptx::bar_sync(static_cast<uint32_t>(barrier), threads);
}

}  // namespace capillary
