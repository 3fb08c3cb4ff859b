// SPDX-License-Identifier: MIT
// Division by a run-time constant as a multiplication: the kernel divides tokens by page sizes and rows by
// group sizes in its inner loops, where a hardware-less integer division costs twenty instructions.
// (Granlund and Montgomery, "Division by invariant integers using multiplication", PLDI 1994, round-up form.)
#pragma once

#include <cstdint>

#include "shared/host_device.h"

namespace capillary {

struct FastDiv {
  uint32_t divisor = 1;
  uint32_t magic = 1;
  uint32_t shift = 0;

  FastDiv() = default;
  constexpr explicit FastDiv(uint32_t by) : divisor(by) {
    while ((uint64_t{1} << shift) < by) ++shift;
    magic = static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << shift) - by) / by + 1);
  }
  // value < 2^31.
  CAPILLARY_HOST_DEVICE constexpr uint32_t divide(uint32_t value) const {
#ifdef __CUDA_ARCH__
    return (__umulhi(value, magic) + value) >> shift;
#else
    return (static_cast<uint32_t>((static_cast<uint64_t>(value) * magic) >> 32) + value) >> shift;
#endif
  }
  CAPILLARY_HOST_DEVICE constexpr uint32_t remainder(uint32_t value, uint32_t quotient) const {
    return value - quotient * divisor;
  }
};

}  // namespace capillary
