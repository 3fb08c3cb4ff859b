// SPDX-License-Identifier: MIT
// Where a job's rows live in the query, output and LSE tensors, and how a finished row is written.
#pragma once

#include <cfloat>

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

// Probabilities are taken against a reference that is seldom moved, not against the maximum of all scores so far: the
// reference is divided out in the end, so it is enough that nothing overflows on the way. A lane's probabilities of a
// step may add up to this much before its warp moves its rows' references; even a half holds it. (Outputs on the way are
// up to so many times larger, too: values of 1e34 are what fp32 has room for.)
inline constexpr float kSumLimit = 16384.0f;

// Moves a row's reference (base 2) up to `top`, by whole powers of two as far as fp32 holds the sum, so that what has been
// added up and packed is rescaled with hardly an error; a row that has none yet (-inf) takes `top` itself. Returns what to
// multiply by. The reference is finite from then on even if all scores were -inf: no (-inf) - (-inf).
__device__ __forceinline__ float move_reference(float& reference, float top) {
  const float old = reference;
  reference = old <= -FLT_MAX ? fmaxf(top, -FLT_MAX) : old + fmaxf(ceilf(top - old), 0.0f);
  return ptx::ex2_approx(old - reference);
}

template <class T>
__device__ __forceinline__ float2 unpack2(uint32_t pair);
template <>
__device__ __forceinline__ float2 unpack2<__nv_bfloat16>(uint32_t pair) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
}
template <>
__device__ __forceinline__ float2 unpack2<__half>(uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

// A peer may still be reading the slots of the previous job: whoever writes a slot first waits for slots_free. Its state is
// a word of shared memory for each warp: as a register it would be spilled in the loops.
class SlotGate {
 public:
  __device__ __forceinline__ SlotGate(uint64_t* s_slots_free, uint32_t* s_exchanges)
      : s_slots_free_(s_slots_free), s_exchanges_(s_exchanges) {
    *s_exchanges_ = 0;
  }
  // By a whole warp, as close(): its lanes all read the word before the first of them writes it.
  __device__ __forceinline__ void pass() const {
    const uint32_t exchanges = *s_exchanges_;
    __syncwarp();
    if (exchanges < kPending) return;
    wait_cluster(s_slots_free_, (exchanges & 1u) ^ 1u, Wait::kSlotsFree);
    *s_exchanges_ = exchanges - kPending;
  }
  // Of the job's exchange, on both of its barriers.
  __device__ __forceinline__ uint32_t parity() const { return *s_exchanges_ & 1u; }
  // This CTA has told its peers that it is through with the exchange.
  __device__ __forceinline__ void close() const {
    const uint32_t exchanges = *s_exchanges_;
    __syncwarp();
    *s_exchanges_ = (exchanges ^ 1u) | kPending;
  }

 private:
  static constexpr uint32_t kPending = 2;
  uint64_t* s_slots_free_;
  uint32_t* s_exchanges_;  // low bit: how many there were; every lane of the warp writes the same
};

}  // namespace capillary::tree_decode
