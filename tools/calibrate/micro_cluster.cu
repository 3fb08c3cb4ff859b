// SPDX-License-Identifier: MIT
// A cluster's CTAs among themselves, launches, and how many clusters are there at once (micro.h).
#include <cooperative_groups.h>

#include <algorithm>

#include "calibrate/gpu.cuh"
#include "calibrate/micro.h"
#include "cuda/ptx.cuh"

namespace capillary::calibrate {

namespace {

constexpr int kThreads = 512;
constexpr int kKernelThreads = 384;  // of tree_decode_kernel
constexpr int kWindowBytes = 64 << 10;
constexpr int kRounds = 1024;  // of the loops below

__device__ __forceinline__ void cluster_sync() {
  ptx::barrier_cluster_arrive_release();
  ptx::barrier_cluster_wait_acquire();
}

__device__ __forceinline__ uint32_t next_rank() {
  const uint32_t rank = ptx::cluster_ctarank() + 1;
  return rank == ptx::cluster_nctarank() ? 0 : rank;
}

// Where a thread's turn of a round lies in the window: somewhere else every round, or the compiler would take the access
// out of the loop.
__device__ __forceinline__ uint32_t window_place(int round, uint32_t turn) {
  const uint32_t place = turn * kThreads + threadIdx.x + static_cast<uint32_t>(round) * 32;
  return place % (kWindowBytes / 16);
}

// Each thread 16 bytes a turn, eight turns in flight, through a window of the next rank's shared memory.
__global__ void __launch_bounds__(kThreads) load_from_peer(float* g_sink) {
  extern __shared__ __align__(16) unsigned char s_bytes[];
  for (uint32_t i = threadIdx.x; i < kWindowBytes / 4; i += kThreads)
    reinterpret_cast<float*>(s_bytes)[i] = 1.0f;
  cluster_sync();
  const uint32_t d_window = ptx::mapa(ptx::smem_address(s_bytes), next_rank());
  float sum = 0.0f;
  for (int round = 0; round < kRounds; ++round) {
#pragma unroll
    for (uint32_t i = 0; i < kWindowBytes / (kThreads * 16); ++i) {
      // Ordered by the cluster barrier above; nobody writes after it.
      const float4 value = ptx::ld_shared_cluster_f4(d_window + window_place(round, i) * 16);
      sum += value.x + value.y + value.z + value.w;
    }
  }
  if (sum == -1.0f) *g_sink = sum;
  cluster_sync();
}

__global__ void __launch_bounds__(kThreads) store_to_peer(float* g_sink) {
  extern __shared__ __align__(16) unsigned char s_bytes[];
  cluster_sync();
  // Nobody reads the window before the cluster barrier at the end.
  auto* d_window = cooperative_groups::this_cluster().map_shared_rank(
      reinterpret_cast<float4*>(s_bytes), next_rank());
  for (int round = 0; round < kRounds; ++round) {
    const auto value = static_cast<float>(round);
#pragma unroll
    for (uint32_t i = 0; i < kWindowBytes / (kThreads * 16); ++i)
      d_window[window_place(round, i)] = float4{value, value, value, value};
  }
  cluster_sync();
  if (reinterpret_cast<float*>(s_bytes)[threadIdx.x] == -1.0f) *g_sink = 1.0f;
}

// A chain of indices in the next rank's shared memory.
__global__ void __launch_bounds__(32) chase_in_peer(float* g_sink, float* g_ns_a_load) {
  constexpr uint32_t kLinks = 256, kStep = 97;  // coprime: the chain goes through all of them
  __shared__ float2 s_links[kLinks];
  for (uint32_t i = threadIdx.x; i < kLinks; i += 32)
    s_links[i] = {__uint_as_float(((i + kStep) % kLinks) * 8), 0.0f};
  cluster_sync();
  const uint32_t d_links = ptx::mapa(ptx::smem_address(s_links), next_rank());
  uint32_t offset = 0;
  const long long begin = ptx::globaltimer();
  for (int round = 0; round < kRounds * 4; ++round)
    offset = __float_as_uint(ptx::ld_shared_cluster_f2(d_links + offset).x);  // ordered as above
  const long long end = ptx::globaltimer();
  if (threadIdx.x == 0 && blockIdx.x == 0)
    *g_ns_a_load = static_cast<float>(end - begin) / (kRounds * 4);
  if (offset == 1) *g_sink = 1.0f;
  cluster_sync();
}

__global__ void __launch_bounds__(kKernelThreads) meet_at_barriers() {
  for (int round = 0; round < kRounds; ++round) cluster_sync();
}

__global__ void __launch_bounds__(kKernelThreads) do_nothing() {}

// Stamps when the CTA was there. It stays for some time, by the clock, so that others can come.
__global__ void __launch_bounds__(kKernelThreads) stay_a_while(long long* g_stamps) {
  constexpr long long kCycles = 400'000;
  const long long from = clock64();
  if (threadIdx.x == 0) g_stamps[2 * blockIdx.x] = ptx::globaltimer();
  while (clock64() - from < kCycles) __nanosleep(200);
  if (threadIdx.x == 0) g_stamps[2 * blockIdx.x + 1] = ptx::globaltimer();
}

double window_bytes(int num_rounds) {
  return static_cast<double>(kWindowBytes) * num_rounds;
}

template <class Kernel>
std::vector<double> peer_rates(Kernel kernel, int cluster_size, int num_clusters) {
  allow_large_ctas(kernel, cluster_size, kOneCtaBytes);
  const DeviceBytes sink(16);
  const std::vector<double> times = time_launches([&](cudaStream_t stream) {
    const ClusterConfig launch(cluster_size, num_clusters, kThreads, kOneCtaBytes, stream);
    CAPILLARY_CUDA(cudaLaunchKernelEx(&launch.config, kernel, sink.get<float>()));
  });
  return rates(times, window_bytes(kRounds) / 1e3);
}

}  // namespace

std::vector<double> dsm_load_gbps(int cluster_size, int num_clusters) {
  return peer_rates(load_from_peer, cluster_size, num_clusters);
}

std::vector<double> dsm_store_gbps(int cluster_size, int num_clusters) {
  return peer_rates(store_to_peer, cluster_size, num_clusters);
}

std::vector<double> dsm_latency_us(int cluster_size, int num_clusters) {
  allow_large_ctas(chase_in_peer, cluster_size, kOneCtaBytes);
  const DeviceBytes sink(16), ns(16);
  std::vector<double> result;
  time_launches([&](cudaStream_t stream) {
    const ClusterConfig launch(cluster_size, num_clusters, 32, kOneCtaBytes, stream);
    CAPILLARY_CUDA(
        cudaLaunchKernelEx(&launch.config, chase_in_peer, sink.get<float>(), ns.get<float>()));
    float value = 0;
    CAPILLARY_CUDA(
        cudaMemcpyAsync(&value, ns.get<float>(), sizeof value, cudaMemcpyDeviceToHost, stream));
    CAPILLARY_CUDA(cudaStreamSynchronize(stream));
    result.push_back(static_cast<double>(value) / 1e3);
  });
  return result;
}

std::vector<double> cluster_barrier_us(int cluster_size, int num_clusters) {
  allow_large_ctas(meet_at_barriers, cluster_size, kOneCtaBytes);
  const std::vector<double> times = time_launches([&](cudaStream_t stream) {
    const ClusterConfig launch(cluster_size, num_clusters, kKernelThreads, kOneCtaBytes, stream);
    CAPILLARY_CUDA(cudaLaunchKernelEx(&launch.config, meet_at_barriers));
  });
  std::vector<double> result;
  for (const double time : times) result.push_back(time / kRounds);
  return result;
}

std::vector<double> empty_launch_us(int cluster_size, int num_clusters) {
  constexpr int kLaunches = 64;
  allow_large_ctas(do_nothing, cluster_size, kOneCtaBytes);
  const Stream capture;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  CAPILLARY_CUDA(cudaStreamBeginCapture(capture.get(), cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < kLaunches; ++i) {
    const ClusterConfig launch(cluster_size, num_clusters, kKernelThreads, kOneCtaBytes,
                               capture.get());
    CAPILLARY_CUDA(cudaLaunchKernelEx(&launch.config, do_nothing));
  }
  CAPILLARY_CUDA(cudaStreamEndCapture(capture.get(), &graph));
  CAPILLARY_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  const std::vector<double> times =
      time_launches([&](cudaStream_t stream) { CAPILLARY_CUDA(cudaGraphLaunch(exec, stream)); });
  (void)cudaGraphExecDestroy(exec);
  (void)cudaGraphDestroy(graph);
  std::vector<double> result;
  for (const double time : times) result.push_back(time / kLaunches);
  return result;
}

int clusters_that_fit(int cluster_size, int smem_bytes) {
  allow_large_ctas(stay_a_while, cluster_size, smem_bytes);
  const ClusterConfig launch(cluster_size, 256, kKernelThreads, smem_bytes, nullptr);
  int count = 0;
  if (cudaOccupancyMaxActiveClusters(&count, stay_a_while, &launch.config) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return count;
}

bool run_at_once(int cluster_size, int num_clusters, int smem_bytes) {
  allow_large_ctas(stay_a_while, cluster_size, smem_bytes);
  const size_t num_ctas = static_cast<size_t>(cluster_size) * static_cast<size_t>(num_clusters);
  const DeviceBytes stamps(static_cast<int64_t>(num_ctas * 2 * sizeof(long long)));
  const Stream stream;
  const ClusterConfig launch(cluster_size, num_clusters, kKernelThreads, smem_bytes, stream.get());
  std::vector<long long> host(num_ctas * 2);
  // Once to load the code, once to look.
  for (int i = 0; i < 2; ++i) {
    CAPILLARY_CUDA(cudaLaunchKernelEx(&launch.config, stay_a_while, stamps.get<long long>()));
    CAPILLARY_CUDA(cudaMemcpyAsync(host.data(), stamps.get<long long>(),
                                   host.size() * sizeof(long long), cudaMemcpyDeviceToHost,
                                   stream.get()));
    CAPILLARY_CUDA(cudaStreamSynchronize(stream.get()));
  }
  long long last_begin = host[0], first_end = host[1];
  for (size_t cta = 0; cta < num_ctas; ++cta) {
    last_begin = std::max(last_begin, host[2 * cta]);
    first_end = std::min(first_end, host[2 * cta + 1]);
  }
  return last_begin < first_end;
}

}  // namespace capillary::calibrate
