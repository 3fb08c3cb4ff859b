// SPDX-License-Identifier: MIT
// capillary._core: the C++ library for Python. Thin: convert, check, call without the GIL, translate errors.
#include "bindings.h"
#include "capillary/version.h"

NB_MODULE(_core, module) {
  using namespace capillary::python;
  // Planners kept by modules (decode() reuses them) are alive when the interpreter ends; that is no leak.
  nanobind::set_leak_warnings(false);
  module.attr("version") = CAPILLARY_VERSION_STRING;
  module.attr("built_with_cuda") = bool{CAPILLARY_WITH_CUDA};
  register_errors();
  bind_profile(module);
  bind_forest(module);
  bind_planner(module);
  bind_radix_cache(module);
  bind_functions(module);
}
