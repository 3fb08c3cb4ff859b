// SPDX-License-Identifier: MIT
// decode_cpu with the attend kernel named, so that tests can run every kernel the processor has.
#pragma once

#include "capillary/decode.h"
#include "cpu/attend.h"

namespace capillary::cpu {

void interpret_plan(const Plan& plan, const DecodeTensors& tensors, const DecodeOptions& options,
                    const AttendKernel& kernel);

}  // namespace capillary::cpu
