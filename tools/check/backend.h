// SPDX-License-Identifier: MIT
// What can execute a plan, as the checks see it: the same case table runs on every backend.
#pragma once

#include <memory>
#include <string>

#include "capillary/plan.h"
#include "capillary/prefix_forest.h"
#include "check/batch.h"

namespace capillary::check {

struct CheckCase;

class Backend {
 public:
  struct Support {
    bool ok = true;
    std::string reason;  // why not
  };

  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  virtual Support supports(const CheckCase& check_case) const = 0;
  // Whether softmax weights are rounded to the cache's dtype before they meet V, as a matrix unit needs;
  // the error bound is that of a plain computation that does the same.
  virtual bool rounds_weights() const = 0;
  // Runs the plan once on the batch as it stands in host memory, and leaves every buffer as the step left
  // it (outputs, and the rest too, so that a stray write shows).
  virtual void decode(const Plan& plan, const PrefixForest& forest, HostBatch& batch) = 0;
};

// num_threads 0: all.
std::unique_ptr<Backend> make_cpu_backend(int32_t num_threads = 0);
// Only in builds with CUDA (CAPILLARY_WITH_CUDA). Throws UnsupportedArch, DeviceError.
std::unique_ptr<Backend> make_cuda_backend(int device = 0);

}  // namespace capillary::check
