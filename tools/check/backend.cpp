// SPDX-License-Identifier: MIT
#include "check/backend.h"

#include "capillary/decode.h"

namespace capillary::check {
namespace {

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int32_t num_threads) : num_threads_(num_threads) {}

  std::string name() const override { return "cpu"; }
  Support supports(const CheckCase&) const override { return {}; }
  bool rounds_weights() const override { return false; }
  void decode(const Plan& plan, const PrefixForest&, HostBatch& batch) override {
    decode_cpu(plan, batch.tensors(), {.num_threads = num_threads_});
  }

 private:
  int32_t num_threads_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(int32_t num_threads) {
  return std::make_unique<CpuBackend>(num_threads);
}

}  // namespace capillary::check
