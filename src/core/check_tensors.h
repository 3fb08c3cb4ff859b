// SPDX-License-Identifier: MIT
// The header is all that a check needs: a plan that lives on a device keeps only that on the host.
#pragma once

#include "capillary/decode.h"
#include "shared/plan_layout.h"

namespace capillary {

void check_tensors(const PlanHeader& header, const DecodeTensors& tensors, DeviceType device);
// Throws InvalidArgument: softmax_scale negative or not a number. Running maxima are of scores before the scale.
void check_options(const DecodeOptions& options);

}  // namespace capillary
