# SPDX-License-Identifier: MIT
# The one list of kernel instances. Each (dtype, head_dim) becomes a source file of its own, so that they
# compile in parallel, and a row of the generated dispatch table, so that neither can miss one.
set(capillary_instance_dtypes __half __nv_bfloat16)
set(CAPILLARY_HEAD_DIMS 64 80 96 112 128 192 256 CACHE STRING
    "Head dims to build kernels for; fewer build faster, and decode refuses the others by name")
set(capillary_instance_head_dims ${CAPILLARY_HEAD_DIMS})

# capillary_generate_instances(out template directory): writes <directory>/cuda/tree_decode/instance_*.cu
# and instances.inc, a list of CAPILLARY_INSTANCE(dtype, head_dim) lines; sets out to the .cu files.
function(capillary_generate_instances out template directory)
  set(files)
  set(table "// Generated from cmake/CapillaryInstances.cmake: every kernel instance of this build.\n")
  foreach(CAPILLARY_DTYPE IN LISTS capillary_instance_dtypes)
    string(REPLACE "__" "" short "${CAPILLARY_DTYPE}")
    string(REPLACE "nv_bfloat16" "bf16" short "${short}")
    foreach(CAPILLARY_HEAD_DIM IN LISTS capillary_instance_head_dims)
      set(file "${directory}/cuda/tree_decode/instance_${short}_${CAPILLARY_HEAD_DIM}.cu")
      configure_file("${template}" "${file}" @ONLY)
      list(APPEND files "${file}")
      string(APPEND table "CAPILLARY_INSTANCE(${CAPILLARY_DTYPE}, ${CAPILLARY_HEAD_DIM})\n")
    endforeach()
  endforeach()
  file(CONFIGURE OUTPUT "${directory}/cuda/tree_decode/instances.inc" CONTENT "${table}" @ONLY)
  set(${out} "${files}" PARENT_SCOPE)
endfunction()
