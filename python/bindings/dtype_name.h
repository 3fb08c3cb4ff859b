// SPDX-License-Identifier: MIT
// Names of element types and modes, as users write them.
#pragma once

#include <string>

#include "capillary/error.h"
#include "capillary/plan.h"
#include "capillary/tensor_view.h"

namespace capillary::python {

inline DType parse_dtype(const char* function, const std::string& name) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32})
    if (name == dtype_name(dtype)) return dtype;
  throw InvalidArgument(five_parts(function, "dtype", "is '" + name + "'",
                                   "be 'float16', 'bfloat16' or 'float32'",
                                   "name the element type of q and the caches"));
}

inline Mode parse_mode(const char* function, const std::string& name) {
  for (const Mode mode : {Mode::kAuto, Mode::kFlat, Mode::kSharedL2})
    if (name == mode_name(mode)) return mode;
  throw InvalidArgument(five_parts(function, "mode", "is '" + name + "'",
                                   "be 'auto', 'flat' or 'shared-l2'", "leave it out for 'auto'"));
}

}  // namespace capillary::python
