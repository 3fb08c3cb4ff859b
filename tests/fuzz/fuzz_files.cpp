// SPDX-License-Identifier: MIT
// Fuzzing of every file that a user hands in: the first byte picks trace, workload file, batch file, device
// profile or tree shorthand, the rest is the text. Anything may be refused, with InvalidArgument and a
// message; what is accepted must survive being written and read again where there is a writer.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>

#include "capillary/error.h"
#include "profile/profile_json.h"
#include "workload/trace.h"
#include "workload/workload.h"

namespace {

using namespace capillary;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

void fuzz_trace(const std::string& text, bool skip_bad_lines) {
  TraceOptions options;
  options.skip_bad_lines = skip_bad_lines;
  std::istringstream in(text);
  const Trace trace = read_trace(in, "fuzz", options);
  require(!trace.requests.empty(), "a trace without requests was accepted");
  std::string again;
  for (const TraceRequest& request : trace.requests) again += trace_line(request) + "\n";
  std::istringstream in_again(again);
  const Trace second = read_trace(in_again, "fuzz");
  require(second.requests.size() == trace.requests.size(), "requests got lost in writing");
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    require(trace_line(second.requests[i]) == trace_line(trace.requests[i]), "a line changed");
  }
}

void fuzz_batch(const std::string& text) {
  const Batch batch = batch_from_json(text, "fuzz");
  // Too large for a block table is for the forest to say.
  const auto forest = PrefixForest::from_block_table(batch.view(), batch.seq_lens, batch.page_size);
  require(forest.num_requests() == batch.num_requests(), "requests got lost in the forest");
}

void fuzz_profile(const std::string& text) {
  const DeviceProfile profile = profile_from_json(text, "fuzz");
  const DeviceProfile again = profile_from_json(profile_to_json(profile), "fuzz");
  require(again.hash() == profile.hash(), "a profile changed in writing");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 6) {
      case 0:
      case 1:
        fuzz_trace(text, data[0] % 6 == 1);
        break;
      case 2:
        workloads_from_json(text, "fuzz");
        break;
      case 3:
        fuzz_batch(text);
        break;
      case 4:
        fuzz_profile(text);
        break;
      default:
        workload_from_shorthand(text);
    }
  } catch (const InvalidArgument& error) {
    // what() ends at the first NUL that a message quotes.
    const bool quotes_nul =
        text.find('\0') != std::string::npos || text.find("\\u0000") != std::string::npos;
    require(quotes_nul || std::string_view(error.what()).find("; must ") != std::string_view::npos,
            "a message without what was expected");
  }
  return 0;
}
