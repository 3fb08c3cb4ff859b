// SPDX-License-Identifier: MIT
// Where a job's rows live in the query, output and LSE tensors, and how a finished row is written.
#pragma once

#include "cuda/tree_decode/args.h"
#include "cuda/tree_decode/storage.cuh"
#include "shared/plan_layout.h"

namespace capillary::tree_decode {

struct JobRows {
  const KernelArgs& args;
  const int32_t* query_order;  // of the job's first query
  uint32_t kv_head;

  // A row's query token and query head.
  struct Place {
    int32_t token;
    uint32_t head;
  };
  __device__ __forceinline__ int32_t token(uint32_t row) const {
    return query_order[args.group_size.divide(row)];
  }
  __device__ __forceinline__ uint32_t head(uint32_t row) const {
    const uint32_t query = args.group_size.divide(row);
    return kv_head * args.group_size.divisor + args.group_size.remainder(row, query);
  }
  __device__ __forceinline__ Place place(uint32_t row) const { return {token(row), head(row)}; }
  template <class T>
  __device__ __forceinline__ const T* q(Place at) const {
    return static_cast<const T*>(args.q) + at.token * args.q_token_stride +
           at.head * args.q_head_stride;
  }
  template <class T>
  __device__ __forceinline__ T* out(Place at) const {
    return static_cast<T*>(args.out) + at.token * args.out_token_stride +
           at.head * args.out_head_stride;
  }
  __device__ __forceinline__ void write_lse(Place at, float max_log2, float sum) const {
    if (args.lse == nullptr) return;
    constexpr float kLn2 = 0.69314718055994530942f;
    args.lse[at.token * args.lse_token_stride + at.head * args.lse_head_stride] =
        sum == 0.0f ? -INFINITY : (max_log2 + log2f(sum)) * kLn2;  // NaN stays NaN
  }
};

// What the un-normalised output of a row is multiplied by. The plain division would call a routine for the sake of
// sums that do not occur (below 2^-126 or above 2^126).
__device__ __forceinline__ float normaliser(float sum) {
  return sum > 0.0f ? __fdividef(1.0f, sum) : 0.0f;
}

template <class T>
__device__ __forceinline__ uint32_t pack2(float low, float high);
template <>
__device__ __forceinline__ uint32_t pack2<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
template <>
__device__ __forceinline__ uint32_t pack2<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// A peer may still be reading the slots of the previous job: whoever writes a slot first waits for slots_free.
struct SlotGate {
  uint64_t* s_slots_free;
  uint32_t parity;
  bool pending;

  __device__ __forceinline__ void pass() {
    if (!pending) return;
    wait_cluster(s_slots_free, parity, Wait::kSlotsFree);
    pending = false;
  }
};

}  // namespace capillary::tree_decode
