// SPDX-License-Identifier: MIT
// capillary::Error -> the classes of capillary/errors.py, with what they carry.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "array_argument.h"
#include "bindings.h"
#include "capillary/error.h"

namespace capillary::python {
namespace {

nb::object make(const char* name, const char* message) {
  return nb::module_::import_("capillary.errors").attr(name)(message);
}

void raise(const nb::object& error) {
  PyErr_SetObject(error.type().ptr(), error.ptr());
}

const char* class_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "InvalidArgumentError";
    case ErrorCode::kUnsupported:
      return "UnsupportedConfigError";
    case ErrorCode::kWorkspaceTooSmall:
      return "WorkspaceTooSmallError";
    case ErrorCode::kOutOfPages:
      return "OutOfPagesError";
    case ErrorCode::kDevice:
      return "DeviceError";
    case ErrorCode::kInternal:
      break;
  }
  return "InternalError";
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const WrongDType& error) {
    raise(make("WrongDTypeError", error.what()));
  } catch (const UnsupportedArch& error) {
    const nb::object raised = make("UnsupportedArchError", error.what());
    raised.attr("found") = error.found();
    raised.attr("needed") = error.needed();
    raise(raised);
  } catch (const WorkspaceTooSmall& error) {
    const nb::object raised = make("WorkspaceTooSmallError", error.what());
    raised.attr("needed_bytes") = error.needed_bytes();
    raised.attr("given_bytes") = error.given_bytes();
    raise(raised);
  } catch (const Error& error) {
    raise(make(class_of(error.code()), error.what()));
  }
}

}  // namespace

void register_errors() {
  nb::register_exception_translator(translate);
}

}  // namespace capillary::python
