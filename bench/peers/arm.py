# SPDX-License-Identifier: MIT
"""What a peer gives the bench: steps to check and time, or the reason why there are none."""
import dataclasses
import typing


class Absent(Exception):
    """The peer cannot be measured here; the message says why and goes into the record."""


@dataclasses.dataclass
class Step:
    form: str
    run: typing.Callable  # run(copy) -> its output, on the current stream
    unfold: typing.Callable  # output -> [requests, q_heads, head_dim]
    copies: int
    bytes_of_one: int  # KV bytes of one copy
    worst_error: typing.Callable  # unfolded output -> largest relative error of a row
    flops: int = 0  # useful ones, where a rate is wanted
    plan: typing.Optional[typing.Callable] = None  # the host's part of a step, timed apart
    # run once for each set-up that a CUDA graph may hold, by what it was planned for; the fastest counts. None: run itself.
    captures: typing.Dict[str, typing.Callable] = dataclasses.field(default_factory=dict)
