// SPDX-License-Identifier: MIT
// Traces for the ways of sharing that public traces lack. A prompt is put together from pieces of text (a
// system prompt, a question, an earlier answer); its blocks are named by their content and all before it, as
// an engine's prefix cache would, so that two prompts share blocks exactly as far as they agree.
// Seeded, and the same on every platform: no distribution of the standard library is used.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "workload/trace.h"

namespace capillary {

enum class TraceKind {
  kGroupSampling,  // RL: many answers to each of a few prompts, all at once
  kFewShot,        // an instruction, a set of examples per task, many short questions
  kTreeSearch,     // rounds of search: the best states of a problem are each extended several ways
  kAgents,  // sessions of several turns over a long tool description; every turn adds a tool's result
  kLongDocument,  // one long document, many questions
  kChat,          // several assistants' system prompts, conversations of several turns
  kMixed,         // all of them at once
};

struct GeneratorOptions {
  TraceKind kind = TraceKind::kMixed;
  uint64_t seed = 1;
  int32_t num_requests = 1000;
  int32_t block_size = kDefaultTraceBlock;
  double requests_per_second = 10;
  double length_scale = 1;  // every length is multiplied by this
};

struct TraceKindName {
  TraceKind kind;
  const char* name;
  const char* help;
};
std::span<const TraceKindName> trace_kinds();

// Exactly num_requests requests, by arrival. Throws InvalidArgument on options that cannot be.
Trace generate_trace(const GeneratorOptions& options);

}  // namespace capillary
