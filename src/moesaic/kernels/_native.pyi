peak_flops: float
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
    def stream_seconds(self, memory: int, bytes: int, spread: bool) -> float: ...
    def peak_seconds(self, items: int) -> float: ...

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
        value: int,
        up_stride: int,
        down_stride: int,
        block: int,
    ) -> None: ...
    def submit(
        self,
        table: int,
        experts: list[int],
        hidden: int,
        hidden_value: int,
        stride: int,
        tokens: int,
        top_k: int,
        ids: int,
        weights: int,
        experts_total: int,
        out: int,
        out_value: int,
        add: bool,
        strict: bool = True,
    ) -> None: ...
    def run(
        self,
        table: int,
        experts: list[int],
        hidden: int,
        hidden_value: int,
        stride: int,
        tokens: int,
        top_k: int,
        ids: int,
        weights: int,
        experts_total: int,
        out: int,
        out_value: int,
        add: bool,
        strict: bool = True,
    ) -> int: ...
    def done(self) -> bool: ...
    def wait(self, help: bool) -> None: ...

class Router:
    def __init__(
        self,
        isa: int,
        experts: int,
        top_k: int,
        sigmoid: bool,
        normalized: bool,
        in_fp32: bool,
        round_weights: bool,
        factor: float,
        groups: int,
        top_groups: int,
        best_two: bool,
    ) -> None: ...
    def route(
        self,
        stream: int,
        norm: int,
        gate: int,
        bias: int,
        value: int,
        tokens: int,
        hidden: int,
        eps: float,
        normalized: int,
        ids: int,
        weights: int,
        scores: int,
        preference: int,
    ) -> None: ...
