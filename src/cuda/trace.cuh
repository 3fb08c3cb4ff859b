// SPDX-License-Identifier: MIT
// In-kernel time stamps (CAPILLARY_TRACE builds only; nothing is left of them otherwise).
#pragma once

#include "cuda/ptx.cuh"
#include "cuda/trace_layout.h"

namespace capillary {

#ifdef CAPILLARY_TRACE
class Tracer {
 public:
  template <class Args>
  __device__ __forceinline__ Tracer(const Args& args, TraceTrack track, bool active) {
    if (!active || args.trace == nullptr) return;
    g_at_ = args.trace + (blockIdx.x * kTraceTracks + static_cast<uint32_t>(track)) * kTraceRecords;
    g_end_ = g_at_ + kTraceRecords;
  }
  __device__ __forceinline__ void mark(TraceEvent event, uint32_t arg) {
    put(event, arg, clock64());
  }
  __device__ __forceinline__ void mark_global() {
    const long long time = ptx::globaltimer();
    put(TraceEvent::kGlobal, ptx::smid(), time);
    put(TraceEvent::kClock, 0, clock64());
  }
  // Around a wait for data.
  __device__ __forceinline__ void begin_wait() { began_ = clock64(); }
  __device__ __forceinline__ void end_wait() { waited_ += clock64() - began_; }
  __device__ __forceinline__ void mark_waited() {
    mark(TraceEvent::kWaited, static_cast<uint32_t>(waited_));
    waited_ = 0;
  }

 private:
  __device__ __forceinline__ void put(TraceEvent event, uint32_t arg, long long time) {
    if (g_at_ == g_end_) return;
    *g_at_++ = {event, arg, time};
  }
  TraceRecord* g_at_ = nullptr;
  TraceRecord* g_end_ = nullptr;
  long long began_ = 0, waited_ = 0;
};
#else
class Tracer {
 public:
  template <class Args>
  __device__ __forceinline__ Tracer(const Args&, TraceTrack, bool) {}
  __device__ __forceinline__ void mark(TraceEvent, uint32_t) {}
  __device__ __forceinline__ void mark_global() {}
  __device__ __forceinline__ void begin_wait() {}
  __device__ __forceinline__ void end_wait() {}
  __device__ __forceinline__ void mark_waited() {}
};
#endif

}  // namespace capillary
