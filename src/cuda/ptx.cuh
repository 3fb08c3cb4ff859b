// SPDX-License-Identifier: MIT
// Every PTX instruction the kernels use that CUDA C++ has no intrinsic for: the only file with inline asm.
// Names follow the instruction; section numbers are those of the PTX ISA 9.0 manual. Waits and arrives say
// their semantics and scope in the name. volatile + "memory" wherever another thread or proxy is involved.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace capillary::ptx {

__device__ __forceinline__ uint32_t smem_address(const void* s_pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(s_pointer));
}

// --- mbarrier (9.7.13.15) ---------------------------------------------------------------------------
__device__ __forceinline__ void mbarrier_init(uint64_t* s_barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_address(s_barrier)), "r"(count)
               : "memory");
}
// Makes initialised barriers visible to the async proxy and to the cluster's other CTAs.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint64_t* s_barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(s_barrier)),
      "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_release_cta(uint64_t* s_barrier, uint32_t count) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(s_barrier)),
               "r"(count)
               : "memory");
}
// Arrives on the barrier at the same offset in CTA `rank` of the cluster.
__device__ __forceinline__ void mbarrier_arrive_release_cluster(uint64_t* s_barrier,
                                                                uint32_t rank) {
  asm volatile(
      "{\n\t.reg .b32 remote;\n\t"
      "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n\t}" ::"r"(
          smem_address(s_barrier)),
      "r"(rank)
      : "memory");
}
__device__ __forceinline__ bool mbarrier_try_wait_acquire_cta(uint64_t* s_barrier,
                                                              uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n\t.reg .pred p;\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
      "selp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(done)
      : "r"(smem_address(s_barrier)), "r"(parity)
      : "memory");
  return done != 0;
}
__device__ __forceinline__ bool mbarrier_test_wait_acquire_cta(uint64_t* s_barrier,
                                                               uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n\t.reg .pred p;\n\t"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
      "selp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(done)
      : "r"(smem_address(s_barrier)), "r"(parity)
      : "memory");
  return done != 0;
}
__device__ __forceinline__ bool mbarrier_try_wait_acquire_cluster(uint64_t* s_barrier,
                                                                  uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n\t.reg .pred p;\n\t"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
      "selp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(done)
      : "r"(smem_address(s_barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

// --- bulk and tensor copies, global to shared (9.7.9.25) ---------------------------------------------
__device__ __forceinline__ void cp_async_bulk(void* s_destination, const void* g_source,
                                              uint32_t bytes, uint64_t* s_barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(smem_address(s_destination)),
      "l"(g_source), "r"(bytes), "r"(smem_address(s_barrier))
      : "memory");
}
__device__ __forceinline__ void cp_async_bulk_tensor_4d(void* s_destination, const CUtensorMap* map,
                                                        int32_t x, int32_t y, int32_t z, int32_t w,
                                                        uint64_t* s_barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3, %4, %5}], [%6];" ::"r"(smem_address(s_destination)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(smem_address(s_barrier))
      : "memory");
}
__device__ __forceinline__ void cp_async_bulk_tensor_5d(void* s_destination, const CUtensorMap* map,
                                                        int32_t x, int32_t y, int32_t z, int32_t w,
                                                        int32_t v, uint64_t* s_barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3, %4, %5, %6}], [%7];" ::"r"(smem_address(s_destination)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v), "r"(smem_address(s_barrier))
      : "memory");
}

// --- copies of 16 bytes a lane, global to shared (9.7.9.25.3) -------------------------------------------
// Past L1: nobody else reads the keys.
template <int kTo, int kFrom>
__device__ __forceinline__ void cp_async_16(uint32_t s_destination, uint64_t g_source) {
  asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %3], 16;" ::"r"(s_destination),
               "l"(g_source), "n"(kTo), "n"(kFrom)
               : "memory");
}
// 16 bytes of zeros; `g_source` is not read, but is an address like any other's.
template <int kTo>
__device__ __forceinline__ void cp_async_zero_16(uint32_t s_destination, uint64_t g_source) {
  asm volatile("cp.async.cg.shared.global [%0 + %2], [%1], 16, 0;" ::"r"(s_destination),
               "l"(g_source), "n"(kTo)
               : "memory");
}
// Arrives once all of this thread's copies so far have landed; the phase waits for one arrival more until then.
__device__ __forceinline__ void cp_async_mbarrier_arrive(uint64_t* s_barrier) {
  asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(smem_address(s_barrier))
               : "memory");
}
// True in one lane of a whole warp. The compiler knows that it is one: what that lane issues needs no loop over lanes.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile("{\n\t.reg .pred p;\n\telect.sync _|p, 0xffffffff;\n\tselp.u32 %0, 1, 0, p;\n\t}"
               : "=r"(elected));
  return elected != 0;
}
// threadIdx.x that the compiler keeps instead of reading it again wherever it is needed.
__device__ __forceinline__ uint32_t thread_index() {
  uint32_t index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}
// The compiler knows nothing of the value any more.
__device__ __forceinline__ void forget(uint32_t& value) {
  asm volatile("" : "+r"(value));
}
__device__ __forceinline__ uint32_t smid() {
  uint32_t id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
}
__device__ __forceinline__ void prefetch_l1(const void* g_address) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(g_address));
}
__device__ __forceinline__ void prefetch_l2(const void* g_address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(g_address));
}
__device__ __forceinline__ void prefetch_tensormap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Read-only data, 16 bytes; volatile so that it is read where it stands and not kept in registers over a loop.
__device__ __forceinline__ uint4 ld_global_nc(const uint4* g_source) {
  uint4 value;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(g_source));
  return value;
}

// Read-only data into a register that else keeps what it has. Written in C++, the load goes to another register and a move
// behind it waits for it.
__device__ __forceinline__ void ld_global_nc_if(bool condition, uint32_t& value,
                                                const int32_t* g_source) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %1, 0;\n\t@p ld.global.nc.u32 %0, [%2];\n\t}"
               : "+r"(value)
               : "r"(static_cast<uint32_t>(condition)), "l"(g_source));
}

// --- fences and barriers -------------------------------------------------------------------------------
// Orders this thread's ordinary shared-memory writes before later reads by the async proxy (wgmma).
__device__ __forceinline__ void fence_proxy_async_shared_cta() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void bar_sync(uint32_t barrier, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_cluster_arrive_release() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void barrier_cluster_wait_acquire() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ uint32_t cluster_ctarank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ uint32_t cluster_nctarank() {
  uint32_t count;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
  return count;
}
__device__ __forceinline__ uint32_t clusterid_x() {
  uint32_t id;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(id));
  return id;
}

// --- distributed shared memory (7.4, mapa) --------------------------------------------------------------
__device__ __forceinline__ uint32_t mapa(uint32_t s_address, uint32_t rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(s_address), "r"(rank));
  return address;
}
__device__ __forceinline__ float4 ld_shared_cluster_f4(uint32_t d_address) {
  float4 value;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(d_address));
  return value;
}
__device__ __forceinline__ float2 ld_shared_cluster_f2(uint32_t d_address) {
  float2 value;
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "r"(d_address));
  return value;
}

// --- global memory with explicit order (workspace parts) ------------------------------------------------
__device__ __forceinline__ void st_release_gpu(uint64_t* g_address, uint64_t value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(g_address), "l"(value) : "memory");
}
__device__ __forceinline__ void st_relaxed_gpu(uint64_t* g_address, uint64_t value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(g_address), "l"(value) : "memory");
}
__device__ __forceinline__ uint64_t ld_acquire_gpu(const uint64_t* g_address) {
  uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(g_address) : "memory");
  return value;
}
__device__ __forceinline__ void fence_sc_gpu() {
  asm volatile("fence.sc.gpu;" ::: "memory");
}

// --- dependent launch (9.7.13.13) -----------------------------------------------------------------------
__device__ __forceinline__ void griddepcontrol_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ long long globaltimer() {
  long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ __forceinline__ float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// --- warp matrix product, 16 x 8 x 16, fp32 accumulate (9.7.14.5) ----------------------------------------
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                             uint32_t a3, uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void mma_m16n8k16<__nv_bfloat16>(float (&c)[4], uint32_t a0, uint32_t a1,
                                                            uint32_t a2, uint32_t a3, uint32_t b0,
                                                            uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, "
      "%9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma_m16n8k16<__half>(float (&c)[4], uint32_t a0, uint32_t a1,
                                                     uint32_t a2, uint32_t a3, uint32_t b0,
                                                     uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The transpose of an 8 x 8 matrix of 16-bit elements: lane (g, t) gives row g, columns 2t and 2t + 1, and gets
// column g's elements 2t and 2t + 1 (9.7.14.5.17).
__device__ __forceinline__ uint32_t movmatrix_trans(uint32_t elements) {
  uint32_t transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(elements));
  return transposed;
}

// --- warpgroup matrix product (9.7.15) ---------------------------------------------------------------------
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving accesses to an accumulator across a wgmma that is in flight.
__device__ __forceinline__ void wgmma_pin(float& accumulator) {
  asm volatile("" : "+f"(accumulator)::"memory");
}

// c[64 x 64] (+)= a[64 x 16] (registers) * b[16 x 64] (shared memory descriptor). kTransposeB: b is stored
// with its 64-long side contiguous (V), otherwise with its 16-long side contiguous (K).
#define CAPILLARY_WGMMA_M64N64K16(type)                                                            \
  asm volatile(                                                                                    \
      "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %37, 0;\n\t"                                           \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                  \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "    \
      "%19, "                                                                                      \
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, "   \
      "p, "                                                                                        \
      "1, 1, %38;\n\t}"                                                                            \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),        \
        "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]),    \
        "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), \
        "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), \
        "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])                                         \
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b_descriptor), "r"(accumulate), "n"(kTransposeB))

template <class T, int kTransposeB>
__device__ __forceinline__ void wgmma_m64n64k16(float (&c)[32], uint32_t a0, uint32_t a1,
                                                uint32_t a2, uint32_t a3, uint64_t b_descriptor,
                                                int accumulate) {
  if constexpr (sizeof(T) == 2 && __is_same(T, __nv_bfloat16)) {
    CAPILLARY_WGMMA_M64N64K16("bf16");
  } else {
    CAPILLARY_WGMMA_M64N64K16("f16");
  }
}
#undef CAPILLARY_WGMMA_M64N64K16

}  // namespace capillary::ptx
