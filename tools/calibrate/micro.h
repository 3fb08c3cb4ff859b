// SPDX-License-Identifier: MIT
// What the card does by itself, one thing at a time: memory and L2 into shared memory, SM to SM, barriers, launches,
// tensor cores. Every loop is counted and every wait has a limit, so no measurement can hang. All work on the current
// device and return one value a repeat; all throw DeviceError.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace capillary::calibrate {

// Bulk copies of 4 KiB (a page of 16 tokens of one head) from places at random into shared memory, one CTA an SM,
// nothing done with them.
class PageReads {
 public:
  static constexpr int64_t kHbmSpan = 4ll << 30;  // many times any L2
  static constexpr int64_t kL2Span = 16ll << 20;

  PageReads();  // allocates kHbmSpan
  ~PageReads();
  PageReads(const PageReads&) = delete;
  PageReads& operator=(const PageReads&) = delete;

  // GB/s of all CTAs together; places lie in the first `span` bytes, a power of two.
  std::vector<double> gbps(int num_ctas, int64_t span);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// --- a cluster's CTAs among themselves; num_clusters at once, one CTA an SM -------------------------------------
// GB/s a CTA of 16-byte accesses to the next rank's shared memory (a cluster of one: its own).
std::vector<double> dsm_load_gbps(int cluster_size, int num_clusters);
std::vector<double> dsm_store_gbps(int cluster_size, int num_clusters);
// One load from the next rank that the load after it needs.
std::vector<double> dsm_latency_us(int cluster_size, int num_clusters);
// From one cluster barrier to the next, 384 threads a CTA.
std::vector<double> cluster_barrier_us(int cluster_size, int num_clusters);
// From one empty kernel to the next inside a graph.
std::vector<double> empty_launch_us(int cluster_size, int num_clusters);

// --- arithmetic ---------------------------------------------------------------------------------------------
// TFLOP/s of all SMs: products m64n64k16 of random bf16 numbers in registers and shared memory, some 50 ms a repeat.
std::vector<double> matrix_tflops();
// Exponentials (base 2) a nanosecond and SM.
std::vector<double> exp2_per_ns();

// --- co-residence -------------------------------------------------------------------------------------------
// Clusters of CTAs with so much dynamic shared memory that the driver says fit at once; 0: none.
int clusters_that_fit(int cluster_size, int smem_bytes);
// Launches so many and looks whether all of them were there at the same time.
bool run_at_once(int cluster_size, int num_clusters, int smem_bytes);

}  // namespace capillary::calibrate
