// SPDX-License-Identifier: MIT
// Umbrella header.
#pragma once

#include "capillary/decode.h"
#include "capillary/device_profile.h"
#include "capillary/error.h"
#include "capillary/plan.h"
#include "capillary/prefix_forest.h"
#include "capillary/radix_cache.h"
#include "capillary/tensor_view.h"
#include "capillary/version.h"
