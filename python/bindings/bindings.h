// SPDX-License-Identifier: MIT
// Each file binds one part of the library; module.cpp calls them.
#pragma once

#include <nanobind/nanobind.h>

namespace capillary::python {

void register_errors();
void bind_profile(nanobind::module_& module);
void bind_forest(nanobind::module_& module);
void bind_planner(nanobind::module_& module);
void bind_radix_cache(nanobind::module_& module);
void bind_functions(nanobind::module_& module);

}  // namespace capillary::python
