# SPDX-License-Identifier: MIT
"""What Capillary raises. Every class is also one of Python's own, so either can be caught.

A message names the function, the argument, what came, what was expected, and what to do.
"""


class CapillaryError(Exception):
    """Base of everything that Capillary raises on its own account."""


class InvalidArgumentError(CapillaryError, ValueError):
    """A value that cannot be right: a shape, a stride, a device, a length."""


class WrongDTypeError(CapillaryError, TypeError):
    """An array whose elements have another type than the one needed."""


class UnsupportedConfigError(CapillaryError, NotImplementedError):
    """A legal request that this build does not serve; the message lists what is served."""


class UnsupportedArchError(CapillaryError, NotImplementedError):
    """A device of another architecture, or none: see ``found`` and ``needed``."""

    found: str = ""
    needed: str = ""


class WorkspaceTooSmallError(CapillaryError, MemoryError):
    """The caller's workspace has ``given_bytes`` where ``needed_bytes`` are needed."""

    needed_bytes: int = 0
    given_bytes: int = 0


class OutOfPagesError(CapillaryError, MemoryError):
    """The page pool of a RadixCache is exhausted."""


class DeviceError(CapillaryError, RuntimeError):
    """The CUDA runtime reported an error."""


class InternalError(CapillaryError, RuntimeError):
    """A bug in Capillary."""
