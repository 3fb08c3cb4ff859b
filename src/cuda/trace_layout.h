// SPDX-License-Identifier: MIT
// What a CAPILLARY_TRACE build of the kernel writes, and `capillary run --trace` reads.
#pragma once

#include <cstdint>

namespace capillary {

// Two lanes of a CTA keep a record each: the first consumer warp's and the K load warp's.
enum class TraceTrack : uint32_t { kCompute, kLoad };
inline constexpr uint32_t kTraceTracks = 2;
inline constexpr uint32_t kTraceRecords = 1024;  // a track; what comes after is lost

// Times are SM clocks, except for the two kGlobal records of a compute track: there both clocks are read
// together, which ties the SMs' clocks to one another.
enum class TraceEvent : uint32_t {
  kNone,         // past the last record
  kGlobal,       // time: %globaltimer in ns; the record after it has the clock. arg: %smid
  kClock,        // the clock at the kGlobal before
  kJob,          // the program of a job is here. arg: KV head
  kWide,         // a wide phase begins. arg: tiles
  kNarrow,       // a narrow phase begins. arg: tiles of the first warp's stream
  kItem,         // an item begins. arg: tiles
  kWaited,       // the phase ends; the warp waited for keys and values for arg cycles of it
  kPhaseEnd,     // every warp is through with the phase
  kPeersReady,   // every rank's partials are in place
  kMerged,       // merged and written
  kLoadPhase,    // load role: first copy of a phase is due. arg: tiles
  kLoadsIssued,  // load role: everything of the job has been asked for
};

struct TraceRecord {
  TraceEvent event;
  uint32_t arg;
  int64_t time;
};

// Where decode() of a CAPILLARY_TRACE build lets the kernel write: [CTAs][kTraceTracks][kTraceRecords] on the
// device, zeroed; null: nowhere. Returns false in builds without.
bool set_trace_buffer(TraceRecord* g_records);

}  // namespace capillary
