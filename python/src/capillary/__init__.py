# SPDX-License-Identifier: MIT
"""Capillary: decode attention over shared prefixes.

A batch's block table says which requests share which pages. Plan it once a step, run the plan in every layer::

    planner = capillary.Planner(num_q_heads=32, num_kv_heads=8, head_dim=128, device="cuda")
    planner.update(block_table, seq_lens, page_size)
    out = planner.run(q, k_cache, v_cache, block_table)
    print(planner.explain())

``capillary.decode`` does both in one call. ``capillary.torch_ops`` registers the same as PyTorch operators, and
``capillary.integrations.transformers`` brings it into Transformers. Nothing here imports a framework.
"""

from ._core import DeviceProfile, PrefixForest, RadixCache, built_with_cuda, devices, kernels, workspace_bytes
from ._core import version as __version__
from ._explanation import Explanation
from ._types import Candidate, ForestNode
from .calibration import calibrate
from .errors import (CapillaryError, DeviceError, InternalError, InvalidArgumentError, OutOfPagesError,
                     UnsupportedArchError, UnsupportedConfigError, WorkspaceTooSmallError, WrongDTypeError)
from .functional import decode, explain, is_supported, load_profile, merge_states, oracle_decode
from .planner import Planner

__all__ = [
    "Candidate", "CapillaryError", "DeviceError", "DeviceProfile", "Explanation", "ForestNode", "InternalError",
    "InvalidArgumentError", "OutOfPagesError", "Planner", "PrefixForest", "RadixCache", "UnsupportedArchError",
    "UnsupportedConfigError", "WorkspaceTooSmallError", "WrongDTypeError", "__version__", "built_with_cuda",
    "calibrate", "decode", "devices", "explain", "is_supported", "kernels", "load_profile", "merge_states", "oracle_decode",
    "workspace_bytes",
]
