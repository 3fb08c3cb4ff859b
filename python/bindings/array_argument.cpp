// SPDX-License-Identifier: MIT
#include "array_argument.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "capillary/error.h"

namespace capillary::python {
namespace {

// Where DLPack has a type's code: complex numbers, structures, the other byte order.
constexpr uint8_t kNoNumber = 255;

// What str() gives. (nb::str of an attribute would want that to be a str already.)
std::string text_of(const nb::object& object) {
  return nb::cast<std::string>(nb::str(nb::handle(object)));
}

std::string python_type(nb::handle object) {
  return text_of(object.type().attr("__name__"));
}

// JAX's arrays never change, which its exports from a device do not say.
bool is_immutable(nb::handle object) {
  const std::string module = text_of(object.type().attr("__module__"));
  const std::string framework = module.substr(0, module.find('.'));
  return framework == "jax" || framework == "jaxlib";
}

bool is_cuda(int device_type) {
  return device_type == dlpack::kCuda || device_type == dlpack::kCudaManaged;
}

[[noreturn]] void fail(const char* function, const char* name, const std::string& came,
                       const std::string& expected, const char* remedy) {
  throw InvalidArgument(five_parts(function, name, came, expected, remedy));
}

std::string bits_text(const dlpack::DataType& dtype) {
  if (dtype.code == kNoNumber)
    return "of " + std::to_string(dtype.bits) + " bits that is no plain number";
  const char* kind = dtype.code == dlpack::kInt      ? "int"
                     : dtype.code == dlpack::kUInt   ? "uint"
                     : dtype.code == dlpack::kFloat  ? "float"
                     : dtype.code == dlpack::kBFloat ? "bfloat"
                                                     : "type code ";
  std::string text = kind;
  if (*kind == 't') text += std::to_string(dtype.code) + " of ";
  text += std::to_string(dtype.bits);
  return dtype.lanes > 1 ? text + "x" + std::to_string(dtype.lanes) : text;
}

DType dtype_of(const dlpack::DataType& dtype, const char* function, const char* name) {
  if (dtype.lanes == 1) {
    if (dtype.code == dlpack::kFloat && dtype.bits == 16) return DType::kFloat16;
    if (dtype.code == dlpack::kFloat && dtype.bits == 32) return DType::kFloat32;
    if (dtype.code == dlpack::kBFloat && dtype.bits == 16) return DType::kBFloat16;
    if (dtype.code == dlpack::kInt && dtype.bits == 32) return DType::kInt32;
    if (dtype.code == dlpack::kInt && dtype.bits == 64) return DType::kInt64;
  }
  throw WrongDType(five_parts(function, name, "has dtype " + bits_text(dtype),
                              "be float16, bfloat16 or float32, or int32 for tables and lengths",
                              "convert it"));
}

// Buffer format characters in native order.
dlpack::DataType buffer_dtype(const Py_buffer& buffer) {
  const char* format = buffer.format == nullptr ? "B" : buffer.format;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  const auto bits = static_cast<uint8_t>(buffer.itemsize * 8);
  uint8_t code = kNoNumber;
  if (format[0] != '\0' && format[1] == '\0') {
    if (std::strchr("bhilqn", *format) != nullptr) code = dlpack::kInt;
    if (std::strchr("BHILQN?", *format) != nullptr) code = dlpack::kUInt;
    if (std::strchr("efdg", *format) != nullptr) code = dlpack::kFloat;
  }
  return {code, bits, 1};
}

const dlpack::ExchangeApi* look_up_api(PyTypeObject* type) {
  PyObject* capsule =
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__");
  if (capsule == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  const auto holder = nb::steal<nb::object>(capsule);
  if (!PyCapsule_IsValid(capsule, "dlpack_exchange_api")) return nullptr;
  const auto* api =
      static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  while (api != nullptr && api->version.major != dlpack::kMajorVersion) api = api->previous;
  return api;
}

}  // namespace

const dlpack::ExchangeApi* exchange_api(nb::handle object) {
  // One type after another is the rule (every tensor of a step), so the last one is remembered, with a
  // reference, so that its address cannot come to mean another type. Guarded by the GIL.
  static PyTypeObject* last_type = nullptr;
  static const dlpack::ExchangeApi* last_api = nullptr;
  PyTypeObject* type = Py_TYPE(object.ptr());
  if (type != last_type) {
    const dlpack::ExchangeApi* api = look_up_api(type);
    Py_INCREF(reinterpret_cast<PyObject*>(type));
    Py_XDECREF(reinterpret_cast<PyObject*>(last_type));
    last_type = type;
    last_api = api;
  }
  return last_api;
}

ArrayArgument::ArrayArgument(const char* function, const char* name, nb::handle object,
                             Access access, nb::handle stream)
    : function_(function), name_(name), is_host_only_(!stream.is_valid()) {
  const dlpack::ExchangeApi* api = exchange_api(object);
  // Frameworks with an exchange table say themselves what may be written to.
  if (api == nullptr && access == Access::kWrite && is_immutable(object))
    fail(function_, name_, "is read-only (a " + python_type(object) + " of JAX)", "be writable",
         "pass an array that may be written to");
  if (api != nullptr && api->view_of_object != nullptr) {
    from_exchange(*api, object, access);
  } else if (PyObject_CheckBuffer(object.ptr())) {
    from_buffer(object, access, stream);
  } else if (nb::hasattr(object, "__dlpack__")) {
    from_capsule(object, access, stream);
  } else {
    fail(function_, name_, "is a " + python_type(object),
         "be an array that offers the buffer protocol or DLPack",
         "pass a NumPy, PyTorch, CuPy or JAX array");
  }
}

ArrayArgument::Borrowed::~Borrowed() {
  if (buffer.obj != nullptr) PyBuffer_Release(&buffer);
  if (managed != nullptr && managed->deleter != nullptr) managed->deleter(managed);
  if (versioned != nullptr && versioned->deleter != nullptr) versioned->deleter(versioned);
}

void ArrayArgument::set(const dlpack::Tensor& tensor) {
  if (tensor.ndim < 0 || tensor.ndim > static_cast<int32_t>(view_.shape.size()))
    fail(function_, name_, "has " + std::to_string(tensor.ndim) + " dimensions",
         "have at most " + std::to_string(view_.shape.size()), "reshape it");
  const int32_t device = tensor.device.type;
  if (is_cuda(device)) {
    view_.device = DeviceType::kCuda;
    view_.device_index = tensor.device.index;
    if (is_host_only_) refuse_device(view_.device_index);
  } else if (device != dlpack::kCpu && device != dlpack::kCudaHost) {
    fail(function_, name_, "is on a device of DLPack type " + std::to_string(device),
         "be in host memory or on a CUDA device", "copy it there");
  }
  view_.dtype = dtype_of(tensor.dtype, function_, name_);
  view_.ndim = tensor.ndim;
  int64_t stride = 1;
  for (int32_t i = tensor.ndim - 1; i >= 0; --i) {
    const auto axis = static_cast<size_t>(i);
    view_.shape[axis] = tensor.shape[i];
    view_.strides[axis] = tensor.strides != nullptr ? tensor.strides[i] : stride;
    stride *= tensor.shape[i];
  }
  view_.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
}

void ArrayArgument::check_writable(uint64_t flags, nb::handle object, Access access) const {
  if (access == Access::kWrite && (flags & dlpack::kFlagReadOnly) != 0)
    fail(function_, name_, "is read-only (a " + python_type(object) + ")", "be writable",
         "pass an array that may be written to");
}

void ArrayArgument::refuse_device(int device_index) const {
  fail(function_, name_, "is on cuda:" + std::to_string(device_index), "be in host memory",
       "copy it to the host");
}

// What a framework says of an array without memory (meta, sparse, fake), under the argument's name.
void ArrayArgument::refuse_export(nb::handle object, const nb::python_error& error) const {
  const std::string said = text_of(nb::borrow(error.value()));
  fail(function_, name_,
       "is a " + python_type(object) + " that cannot be exported (" +
           said.substr(0, said.find('\n')) + ")",
       "be an array with memory of its own", "pass a dense, materialised array");
}

void ArrayArgument::from_exchange(const dlpack::ExchangeApi& api, nb::handle object,
                                  Access access) {
  if (access == Access::kRead) {
    dlpack::Tensor tensor{};
    if (api.view_of_object(object.ptr(), &tensor) != 0) refuse_export(object, nb::python_error());
    set(tensor);
    return;
  }
  // A plain view does not say whether it may be written to.
  if (api.managed_from_object(object.ptr(), &borrowed_.versioned) != 0)
    refuse_export(object, nb::python_error());
  check_writable(borrowed_.versioned->flags, object, access);
  set(borrowed_.versioned->tensor);
}

void ArrayArgument::from_buffer(nb::handle object, Access access, nb::handle stream) {
  Py_buffer& buffer = borrowed_.buffer;
  if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_FULL_RO) != 0) {
    PyErr_Clear();
    buffer.obj = nullptr;
    // CuPy's and JAX's types offer buffers, their arrays on a device do not.
    if (nb::hasattr(object, "__dlpack__") && is_cuda(dlpack_device(object).first)) {
      from_capsule(object, access, stream);
      return;
    }
    // NumPy has no bfloat16 of its own; ml_dtypes' cannot be exported, its bits can.
    if (!nb::hasattr(object, "dtype") || text_of(object.attr("dtype")) != "bfloat16")
      fail(function_, name_, "is a " + python_type(object) + " whose memory cannot be looked at",
           "offer the buffer protocol with numbers", "convert it to a NumPy array");
    borrowed_.bits = object.attr("view")("uint16");
    from_buffer(borrowed_.bits, access, stream);
    return;
  }
  if (access == Access::kWrite && buffer.readonly)
    fail(function_, name_, "is read-only", "be writable", "pass an array that may be written to");
  std::array<int64_t, 8> shape{}, strides{};
  dlpack::Tensor tensor{buffer.buf,
                        {dlpack::kCpu, 0},
                        buffer.ndim,
                        buffer_dtype(buffer),
                        shape.data(),
                        strides.data(),
                        0};
  if (borrowed_.bits.is_valid()) tensor.dtype = {dlpack::kBFloat, 16, 1};
  for (int i = 0; i < std::min<int>(buffer.ndim, shape.size()); ++i) {
    shape[static_cast<size_t>(i)] = buffer.shape[i];
    strides[static_cast<size_t>(i)] = buffer.strides[i] / std::max<int64_t>(buffer.itemsize, 1);
    if (buffer.strides[i] % std::max<int64_t>(buffer.itemsize, 1) != 0)
      fail(function_, name_, "has strides that are no multiple of its elements' size",
           "have its elements at multiples of their size", "copy it");
  }
  set(tensor);
}

// (type, index) of __dlpack_device__: the array API standard wants an enumeration's member for the type, which need
// not be an int (JAX's are none).
std::pair<int, int> ArrayArgument::dlpack_device(nb::handle object) const {
  const nb::object device = object.attr("__dlpack_device__")();
  const auto number = [&](int i) {
    nb::object item = device[i];
    if (PyIndex_Check(item.ptr()) == 0 && nb::hasattr(item, "value")) item = item.attr("value");
    int value = 0;
    if (!nb::try_cast(item, value))
      fail(function_, name_, "gives " + nb::cast<std::string>(nb::repr(device)) + " as its device",
           "give a device type and an index (__dlpack_device__)", "pass an array of a framework");
    return value;
  };
  return {number(0), number(1)};
}

void ArrayArgument::from_capsule(nb::handle object, Access access, nb::handle stream) {
  nb::dict options;
  const std::pair<int, int> device = dlpack_device(object);
  if (is_cuda(device.first)) {
    if (!stream.is_valid()) refuse_device(device.second);
    // In DLPack 0 is ambiguous and 1 is the legacy default stream.
    const auto address =
        reinterpret_cast<uintptr_t>(resolve_stream(function_, stream, object, device.second));
    options["stream"] = address == 0 ? 1 : address;
  }
  nb::object capsule;
  try {
    options["max_version"] = nb::make_tuple(dlpack::kMajorVersion, 0);
    capsule = object.attr("__dlpack__")(**options);
  } catch (nb::python_error& error) {
    if (error.matches(PyExc_BufferError)) refuse_export(object, error);
    // A producer from before DLPack 1 does not know the option.
    if (!error.matches(PyExc_TypeError)) throw;
    PyDict_DelItemString(options.ptr(), "max_version");
    capsule = object.attr("__dlpack__")(**options);
  }
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    borrowed_.versioned = static_cast<dlpack::ManagedTensorVersioned*>(
        PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
    check_writable(borrowed_.versioned->flags, object, access);
    set(borrowed_.versioned->tensor);
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    borrowed_.managed =
        static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
    PyCapsule_SetName(capsule.ptr(), "used_dltensor");
    set(borrowed_.managed->tensor);
  } else {
    fail(function_, name_, "gave a DLPack capsule of an unknown kind",
         "give a dltensor or a dltensor_versioned", "update the framework it comes from");
  }
}

void ArrayArgument::require(DType dtype, const char* remedy) const {
  if (view_.dtype == dtype) return;
  throw WrongDType(five_parts(function_, name_, std::string("has dtype ") + dtype_name(view_.dtype),
                              std::string("have dtype ") + dtype_name(dtype), remedy));
}

std::span<const int32_t> ArrayArgument::int32s() const {
  require(DType::kInt32, "convert it to int32");
  if (on_cuda()) refuse_device(view_.device_index);
  if (view_.ndim != 1)
    fail(function_, name_, "has " + std::to_string(view_.ndim) + " dimensions", "have one",
         "flatten it");
  if (view_.shape[0] > 1 && view_.strides[0] != 1)
    fail(function_, name_, "has stride " + std::to_string(view_.strides[0]), "be contiguous",
         "copy it");
  return {static_cast<const int32_t*>(view_.data), static_cast<size_t>(view_.shape[0])};
}

void* resolve_stream(const char* function, nb::handle stream, nb::handle array,
                     int32_t device_index) {
  const auto address = [function](nb::handle value) {
    uintptr_t number = 0;
    if (!nb::try_cast(value, number))
      fail(function, "stream", "has the address " + nb::cast<std::string>(nb::repr(value)),
           "be the address of a CUDA stream", "pass torch.cuda.current_stream()");
    return reinterpret_cast<void*>(number);
  };
  if (!stream.is_none()) {
    if (PyLong_Check(stream.ptr())) return address(stream);
    for (const char* attribute : {"cuda_stream", "ptr"})
      if (nb::hasattr(stream, attribute)) return address(nb::object(stream.attr(attribute)));
    if (nb::hasattr(stream, "__cuda_stream__"))
      return address(nb::object(nb::object(stream.attr("__cuda_stream__")())[1]));
    fail(function, "stream", "is a " + python_type(stream),
         "be a stream's address, or an object with cuda_stream, ptr or __cuda_stream__",
         "pass torch.cuda.current_stream(), a cupy.cuda.Stream, or an int");
  }
  const auto current_of = [device_index](const dlpack::ExchangeApi* api, void** current) {
    if (api == nullptr || api->current_stream == nullptr) return false;
    if (api->current_stream(dlpack::kCuda, device_index, current) != 0) throw nb::python_error();
    return true;
  };
  void* current = nullptr;
  const bool has_array = array.is_valid() && !array.is_none();
  if (has_array && current_of(exchange_api(array), &current)) return current;
  // Without an array, and for versions without the table: PyTorch, if somebody loaded it.
  const auto torch = nb::borrow(PyDict_GetItemString(PyImport_GetModuleDict(), "torch"));
  if (torch.is_valid() && nb::hasattr(torch, "Tensor")) {
    const nb::object tensor_type = torch.attr("Tensor");
    if (!has_array) {
      auto* type = reinterpret_cast<PyTypeObject*>(tensor_type.ptr());
      if (current_of(look_up_api(type), &current)) return current;
    }
    if (!has_array || nb::isinstance(array, tensor_type))
      return address(
          nb::object(torch.attr("cuda").attr("current_stream")(device_index).attr("cuda_stream")));
  }
  fail(function, "stream", "is None", "say on which CUDA stream to work",
       "pass the address of your framework's current stream, e.g. "
       "cupy.cuda.get_current_stream()");
}

}  // namespace capillary::python
