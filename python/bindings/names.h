// SPDX-License-Identifier: MIT
// Names of element types, modes, layouts and devices, as users write them.
#pragma once

#include <string>
#include <string_view>

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

// Whether a cache's axes are in HND order.
inline bool parse_layout(const char* function, std::string_view layout) {
  if (layout == "NHD") return false;
  if (layout == "HND") return true;
  throw InvalidArgument(five_parts(function, "kv_layout", "is '" + std::string(layout) + "'",
                                   "be 'NHD' ([pages, page_size, heads, dim]) or 'HND' "
                                   "([pages, heads, page_size, dim])",
                                   "name the order of the caches' axes"));
}

// "cpu" -> -1, "cuda" -> 0, "cuda:N" -> N
inline int32_t parse_device(const char* function, const std::string& device) {
  if (device == "cpu") return -1;
  if (device == "cuda") return 0;
  const std::string digits = device.rfind("cuda:", 0) == 0 ? device.substr(5) : "";
  if (digits.empty() || digits.size() > 4 ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    throw InvalidArgument(five_parts(function, "device", "is '" + device + "'",
                                     "be 'cpu', 'cuda' or 'cuda:N'",
                                     "name the device that the caches are on"));
  return std::stoi(digits);
}

}  // namespace capillary::python
