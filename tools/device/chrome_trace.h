// SPDX-License-Identifier: MIT
// The kernel's time stamps as a Chrome trace (JSON Object Format, "X" events): open it in Perfetto.
#pragma once

#include <span>
#include <string>

#include "cuda/trace_layout.h"

namespace capillary::device {

// records: [num_ctas][kTraceTracks][kTraceRecords]. A process is a CTA (named after its SM), its two threads are
// the first consumer warp and the K load warp; times are microseconds from the first CTA's start.
std::string chrome_trace(std::span<const TraceRecord> records, int num_ctas);

}  // namespace capillary::device
