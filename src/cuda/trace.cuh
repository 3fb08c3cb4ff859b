// SPDX-License-Identifier: MIT
// In-kernel time stamps (CAPILLARY_TRACE builds only; nothing is left of them otherwise). A CTA has one slot
// for each event; `first` keeps the earliest stamp, `last` the latest.
#pragma once

#include <cstdint>

#include "cuda/ptx.cuh"

namespace capillary {

enum class TraceEvent : int {
  kStart,        // barriers are up, the kernel before us has ended
  kProgram,      // load role: the first program is here
  kFirstCopy,    // load role: the first key copy has been issued
  kFirstKeys,    // warp 0: the first keys are here
  kLoadsIssued,  // load role: everything has been asked for
  kPhasesDone,   // warp 0: the last phase is over
  kPeersReady,   // warp 0: every rank's partials are in place
  kMergesDone,   // warp 0: merged and written
  kStartGlobal,  // %globaltimer at kStart and kMergesDone: comparable between SMs
  kEndGlobal,
  kNumEvents
};

#ifdef CAPILLARY_TRACE
__device__ __forceinline__ void trace_stamp(long long* g_trace, TraceEvent event, bool only_first,
                                            long long time) {
  if (g_trace == nullptr) return;
  long long& slot =
      g_trace[blockIdx.x * static_cast<int>(TraceEvent::kNumEvents) + static_cast<int>(event)];
  if (!only_first || slot == 0) slot = time;
}
#define CAPILLARY_TRACE_FIRST(args, event) \
  trace_stamp((args).trace, TraceEvent::event, true, clock64())
#define CAPILLARY_TRACE_LAST(args, event) \
  trace_stamp((args).trace, TraceEvent::event, false, clock64())
#define CAPILLARY_TRACE_GLOBAL(args, event) \
  trace_stamp((args).trace, TraceEvent::event, false, ptx::globaltimer())
#else
#define CAPILLARY_TRACE_FIRST(args, event)
#define CAPILLARY_TRACE_LAST(args, event)
#define CAPILLARY_TRACE_GLOBAL(args, event)
#endif

}  // namespace capillary
