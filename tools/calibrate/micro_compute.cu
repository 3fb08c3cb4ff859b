// SPDX-License-Identifier: MIT
// Tensor cores and exponentials (micro.h).
#include "calibrate/gpu.cuh"
#include "calibrate/micro.h"
#include "cuda/ptx.cuh"

namespace capillary::calibrate {

namespace {

constexpr int kThreads = 256;         // two warpgroups
constexpr int kTileBytes = 64 * 128;  // 64 rows of 64 bf16 numbers, 128-byte swizzle
constexpr int kTiles = 4;             // that the products take turns with

// Two bf16 numbers of random sign and mantissa, 0.5 to 1 in size.
__device__ __forceinline__ uint32_t random_pair(uint32_t seed) {
  uint32_t x = seed * 2654435761u + 12345u;
  x ^= x >> 16;
  x *= 2246822519u;
  x ^= x >> 13;
  return (x & 0x807f807fu) | 0x3f003f00u;
}

// Both warpgroups multiply registers by tiles in shared memory, eight products to a group, one group ahead.
__global__ void __launch_bounds__(kThreads, 1) multiply(uint32_t groups, float* g_sink) {
  extern __shared__ __align__(1024) unsigned char s_tiles[];
  for (uint32_t i = threadIdx.x; i < kTiles * kTileBytes / 4; i += kThreads)
    reinterpret_cast<uint32_t*>(s_tiles)[i] = random_pair(i * 977u + blockIdx.x);
  ptx::fence_proxy_async_shared_cta();
  __syncthreads();
  uint32_t a[4][4];
#pragma unroll
  for (uint32_t i = 0; i < 16; ++i) a[i / 4][i % 4] = random_pair(threadIdx.x * 16 + i + 99u);
  float c[2][32];
#pragma unroll
  for (int i = 0; i < 32; ++i) c[0][i] = c[1][i] = 0.0f;
  // The matrix descriptor of wide.cuh: 128-byte swizzle, groups of 8 rows 1024 bytes apart.
  const uint32_t address = __shfl_sync(0xffffffffu, ptx::smem_address(s_tiles), 0);
  const uint64_t tiles = ((address & 0x3ffffu) >> 4) | (uint64_t{1024 >> 4} << 16) |
                         (uint64_t{1024 >> 4} << 32) | (uint64_t{1} << 62);
  for (uint32_t group = 0; group < groups; ++group) {
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 8; ++i)
      ptx::wgmma_m64n64k16<__nv_bfloat16, 0>(
          c[i % 2], a[i % 4][0], a[i % 4][1], a[i % 4][2], a[i % 4][3],
          tiles + static_cast<uint64_t>((i % kTiles) * kTileBytes / 16 + i / kTiles * 2), 1);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
  }
  ptx::wgmma_wait<0>();
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    ptx::wgmma_pin(c[0][i]);
    ptx::wgmma_pin(c[1][i]);
    sum += c[0][i] + c[1][i];
  }
  if (sum == 0.12345f) *g_sink = sum;
}

// Eight chains a thread.
__global__ void __launch_bounds__(512) exponentials(uint32_t rounds, float* g_sink) {
  float value[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) value[i] = -0.001f * static_cast<float>(threadIdx.x + 512u * i);
  for (uint32_t round = 0; round < rounds; ++round)
#pragma unroll
    for (float& x : value) x = ptx::ex2_approx(-x);
  float sum = 0.0f;
#pragma unroll
  for (const float x : value) sum += x;
  if (sum == 0.12345f) *g_sink = sum;
}

int num_sms() {
  int device = 0, count = 0;
  CAPILLARY_CUDA(cudaGetDevice(&device));
  CAPILLARY_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

}  // namespace

std::vector<double> matrix_tflops() {
  // 8 products of 2 x 64 x 64 x 16 operations a warpgroup: at 4096 operations a cycle, some 50 ms.
  constexpr uint32_t kGroups = 180'000;
  const int sms = num_sms();
  allow_large_ctas(multiply, 1, kOneCtaBytes);
  const DeviceBytes sink(16);
  const std::vector<double> times = time_launches([&](cudaStream_t stream) {
    multiply<<<static_cast<unsigned>(sms), kThreads, kOneCtaBytes, stream>>>(kGroups,
                                                                             sink.get<float>());
  });
  return rates(times, 2.0 * 64 * 64 * 16 * 8 * 2 * kGroups * sms / 1e6);
}

std::vector<double> exp2_per_ns() {
  constexpr uint32_t kRounds = 20'000;
  const int sms = num_sms();
  const DeviceBytes sink(16);
  const std::vector<double> times = time_launches([&](cudaStream_t stream) {
    exponentials<<<static_cast<unsigned>(sms) * 2, 512, 0, stream>>>(kRounds, sink.get<float>());
  });
  return rates(times, 2.0 * 512 * 8 * kRounds / 1e3);
}

}  // namespace capillary::calibrate
