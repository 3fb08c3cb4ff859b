// SPDX-License-Identifier: MIT
// The header is all that a check needs: a plan that lives on a device keeps only that on the host.
#pragma once

#include "capillary/decode.h"
#include "shared/plan_layout.h"

namespace capillary {

void check_tensors(const PlanHeader& header, const DecodeTensors& tensors, DeviceType device);

}  // namespace capillary
