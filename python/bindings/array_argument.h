// SPDX-License-Identifier: MIT
// Python arrays as TensorViews: NumPy and other buffers, and whatever speaks DLPack (PyTorch, CuPy, JAX).
// Nothing is copied. A view is valid as long as its ArrayArgument.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <stdexcept>

#include "capillary/tensor_view.h"
#include "dlpack_abi.h"

namespace capillary::python {

namespace nb = nanobind;

enum class Access { kRead, kWrite };

// A wrong dtype; becomes TypeError in Python where other bad values become ValueError.
class WrongDType : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ArrayArgument {
 public:
  // `function` and `name` are for messages. `stream` (an address) is handed to producers that synchronise by
  // it; those with an exchange table are taken as they are, on their current stream. Without a handle at all
  // (not None: that is the current stream) the array must be in host memory.
  // Throws WrongDType for an element type Capillary has no name for, InvalidArgument for anything else that
  // makes the object unfit: no array at all, another device, read-only where it would be written.
  ArrayArgument(const char* function, const char* name, nb::handle object, Access access,
                nb::handle stream = nb::handle());
  ArrayArgument(const ArrayArgument&) = delete;
  ArrayArgument& operator=(const ArrayArgument&) = delete;

  const TensorView& view() const { return view_; }
  bool on_cuda() const { return view_.device == DeviceType::kCuda; }

  // Throws WrongDType unless the elements are of this type.
  void require(DType dtype, const char* remedy) const;
  // Host int32 elements; throws unless it is a contiguous one-dimensional int32 array in host memory.
  std::span<const int32_t> int32s() const;

 private:
  void from_buffer(nb::handle object, Access access, nb::handle stream);
  void from_exchange(const dlpack::ExchangeApi& api, nb::handle object, Access access);
  void check_writable(uint64_t flags, nb::handle object, Access access) const;
  [[noreturn]] void refuse_device(int device_index) const;
  [[noreturn]] void refuse_export(nb::handle object, const nb::python_error& error) const;
  std::pair<int, int> dlpack_device(nb::handle object) const;
  void from_capsule(nb::handle object, Access access, nb::handle stream);
  void set(const dlpack::Tensor& tensor);

  const char* function_;
  const char* name_;
  bool is_host_only_;
  TensorView view_;

  // What has to be given back. A member of its own, so that a constructor that throws gives it back too.
  struct Borrowed {
    ~Borrowed();
    Py_buffer buffer{};  // released if obj is set
    nb::object bits;     // a view as integers, of an array whose own type cannot be exported
    dlpack::ManagedTensor* managed = nullptr;
    dlpack::ManagedTensorVersioned* versioned = nullptr;
  } borrowed_;
};

// The exchange table of an array's type, or null.
const dlpack::ExchangeApi* exchange_api(nb::handle object);

// A stream given by its user as an address, or as an object with `cuda_stream` (PyTorch), `ptr` (CuPy) or
// `__cuda_stream__`; None: the current one of the framework `array` belongs to (null: of PyTorch, if it is
// loaded). Throws InvalidArgument where None leaves it open which stream is meant.
void* resolve_stream(const char* function, nb::handle stream, nb::handle array,
                     int32_t device_index);

}  // namespace capillary::python
