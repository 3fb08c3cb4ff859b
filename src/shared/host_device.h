// SPDX-License-Identifier: MIT
// Marks functions that host and device share; nothing without nvcc.
#pragma once

#ifdef __CUDACC__
#define CAPILLARY_HOST_DEVICE __host__ __device__
#else
#define CAPILLARY_HOST_DEVICE
#endif
