"""What an engine and its callers send each other: one tagged struct per kind of message.

Ids of requests are those of the caller, and unique per connection. A `Step` has the results of one
step of the engine for one caller. Texts are made, and stop strings found, on the caller's side:
messages carry token ids alone."""

from __future__ import annotations

import msgspec
import numpy as np

from moesaic.engine.completion import FinishReason
from moesaic.engine.insight.capture_order import CaptureKind
from moesaic.engine.insight.facts import Insight
from moesaic.engine.kv.kv_blocks import Difference
from moesaic.engine.process.faults import Fault
from moesaic.engine.run_stats import RunStats
from moesaic.engine.sampling.sampling_params import SamplingParams

_LARGE = 2**31 - 1  # more alternatives or candidates than any vocabulary has


class SamplingFields(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fields of `SamplingParams` that choose tokens, with the same defaults. `form` is the
    compiled constraint on the text."""

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: str | None = None  # a number of any length
    logprobs: int | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    form: str | None = None

    @classmethod
    def of(cls, params: SamplingParams, max_new_tokens: int) -> SamplingFields:
        """Numbers without an upper limit are cut to what can make a difference."""
        fields = {name: getattr(params, name) for name in cls.__struct_fields__}
        fields |= {
            "max_tokens": max_new_tokens,
            "min_tokens": min(params.min_tokens, max_new_tokens),
            "top_k": min(params.top_k, _LARGE),
            "logprobs": None if params.logprobs is None else min(params.logprobs, _LARGE),
            "seed": None if params.seed is None else str(params.seed),
        }
        return cls(**fields)

    def params(self) -> SamplingParams:
        fields = msgspec.structs.asdict(self)
        form = fields.pop("form")
        fields["seed"] = None if self.seed is None else int(self.seed)
        made = SamplingParams(**fields)
        object.__setattr__(made, "form", form)  # which the caller has compiled and checked
        return made


class TokenUpdate(msgspec.Struct, frozen=True, array_like=True):
    """The result of a step for one request. Without a token it has ended: with the finish reason
    `cancelled`, because of its own `fault` if there is one; with a fault and no finish reason,
    because of an error that ended all requests."""

    id: int
    token: int | None
    finish: FinishReason | None = None
    cached_tokens: int = 0  # of the prompt
    logprob: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()
    fault: Fault | None = None
    differs: Difference | None = None  # with the first token: see `Request.differs`


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


# From a caller.


class Hello(_Message, frozen=True):
    """The first message of a connection; the answer is `Ready` or `Failed`, `Progress` before."""


class Submit(_Message, frozen=True):
    id: int
    prompt: list[int]
    sampling: SamplingFields
    max_new_tokens: int
    number: int = 0
    boundaries: tuple[int, ...] = ()
    client: str = ""
    priority: int = 0


class Cancel(_Message, frozen=True):
    id: int


class Read(_Message, frozen=True):
    """So many messages have been read since the last time."""

    messages: int


class GetStats(_Message, frozen=True):
    pass


class GetInsight(_Message, frozen=True):
    """The answer is `InsightFound` with the same number."""

    number: int


class BeginCapture(_Message, frozen=True):
    """The answer is `Captured` with the same number, when so many steps have run."""

    number: int
    kind: CaptureKind
    steps: int


class EndCapture(_Message, frozen=True):
    """Wait for no more steps."""


class Drain(_Message, frozen=True):
    """Take no more requests; the answer is `Drained`, when those that run have ended."""


class Shutdown(_Message, frozen=True):
    """Cancel all requests and end; the answer is `Closed`. A fault makes a recording void."""

    fault: Fault | None = None


# From the engine.


class Progress(_Message, frozen=True):
    done: int  # experts loaded
    total: int


class Ready(_Message, frozen=True):
    process: int
    connection: int  # the number of the caller
    context: int  # tokens of a sequence, prompt and answer together
    sequences: int  # that run at once


class Failed(_Message, frozen=True):
    """The model could not be loaded."""

    fault: Fault


class Accepted(_Message, frozen=True):
    id: int


class Refused(_Message, frozen=True):
    id: int
    fault: Fault


class Step(_Message, frozen=True):
    updates: list[TokenUpdate]


class Stats(_Message, frozen=True):
    stats: RunStats
    answer: bool  # to `GetStats`; others are sent each second while there are requests


class InsightFound(_Message, frozen=True):
    """With one of both."""

    number: int
    insight: Insight | None
    fault: Fault | None = None


class Captured(_Message, frozen=True):
    """Without a fault, the file."""

    number: int
    data: bytes
    fault: Fault | None = None


class Drained(_Message, frozen=True):
    pass


class Closed(_Message, frozen=True):
    """All is closed, and the process is about to end. The fault is an error that no request got,
    or of closing: a recording that could not be written."""

    fault: Fault | None = None


FromCaller = (
    Hello | Submit | Cancel | Read | GetStats | GetInsight | BeginCapture | EndCapture | Drain
    | Shutdown
)  # fmt: skip
FromEngine = (
    Progress | Ready | Failed | Accepted | Refused | Step | Stats | InsightFound | Captured
    | Drained | Closed
)  # fmt: skip


def _plain(value: object) -> object:
    """Counters may be numpy's, and numbers of settings may say whose choice they are."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, int):
        return int(value)
    raise TypeError(f"no message can carry {type(value).__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_of_caller: msgspec.msgpack.Decoder[FromCaller] = msgspec.msgpack.Decoder(FromCaller)
_of_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode(message: FromCaller | FromEngine) -> bytes:
    return _encoder.encode(message)


def decode_from_caller(data: bytes) -> FromCaller:
    return _of_caller.decode(data)


def decode_from_engine(data: bytes) -> FromEngine:
    return _of_engine.decode(data)
