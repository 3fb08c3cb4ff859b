// SPDX-License-Identifier: MIT
#include "cpu/attend.h"

namespace capillary::cpu {

const AttendKernel& best_attend_kernel() {
  static const AttendKernel* const kBest = [] {
    if (const AttendKernel* kernel = attend_kernel_avx512_bf16()) return kernel;
    if (const AttendKernel* kernel = attend_kernel_avx512()) return kernel;
    if (const AttendKernel* kernel = attend_kernel_avx2()) return kernel;
    return attend_kernel_generic();
  }();
  return *kBest;
}

}  // namespace capillary::cpu
