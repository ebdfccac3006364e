peak_item_flops: float
c_functions: dict[str, int]

def isas() -> list[str]: ...
def block_bytes(dtype: int, hidden: int, intermediate: int) -> int: ...
def unpack(
    dtype: int, hidden: int, intermediate: int, block: int, gate: int, up: int, down: int
) -> None: ...

class Pool:
    def __init__(self, cores: list[int], spin_us: float) -> None: ...
    @property
    def workers(self) -> int: ...
    @property
    def pinned(self) -> list[int]: ...
    def start_latencies(self, count: int) -> list[int]: ...
    def stream_seconds(self, memory: int, bytes: int, multi_stream: bool) -> float: ...
    def peak_seconds(self, items: int) -> float: ...

class LayerCall:
    """`LayerCall` of native/layer/layer.h: addresses and enums are integers."""

    block_table: int
    experts: list[int]
    hidden: int
    hidden_type: int
    hidden_stride: int
    tokens: int
    top_k: int
    experts_total: int
    ids: int
    weights: int
    out: int
    out_type: int
    add: bool
    strict: bool

    def __init__(self) -> None: ...

class Runner:
    def __init__(
        self,
        pool: Pool,
        dtype: int,
        hidden: int,
        intermediate: int,
        activation: int,
        isa: int,
        tiles_from: int,
    ) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def block_bytes(self) -> int: ...
    def workspace_bytes(self, tokens: int, top_k: int) -> int: ...
    def pack(
        self,
        gate: int,
        up: int,
        down: int,
        type: int,
        up_stride: int,
        down_stride: int,
        block: int,
    ) -> None: ...
    def submit(self, call: LayerCall) -> None: ...
    def run(self, call: LayerCall) -> int: ...
    def done(self) -> bool: ...
    def wait(self, help: bool) -> None: ...

class RouterConfig:
    experts: int
    top_k: int
    sigmoid: bool
    renormalize: bool
    in_fp32: bool
    round_weights: bool
    scaling_factor: float
    groups: int
    top_groups: int
    top2_group_score: bool

    def __init__(self) -> None: ...

class RouterCall:
    residual: int
    norm: int
    gate: int
    bias: int
    type: int
    tokens: int
    hidden: int
    eps: float
    normalized: int
    ids: int
    weights: int
    scores: int
    selection_scores: int

    def __init__(self) -> None: ...

class Router:
    def __init__(self, isa: int, config: RouterConfig) -> None: ...
    def route(self, call: RouterCall) -> None: ...
