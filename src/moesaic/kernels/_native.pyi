from typing import overload

c_functions: dict[str, int]

def isas() -> list[str]: ...
def peaks() -> dict[str, float]: ...
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
    def peak_seconds(self, unit: str, items: int) -> float: ...

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

class PackedMatrix:
    """Of native/linear/packed_matrix.h: refers to memory that must outlive it."""

    @overload
    def __init__(self) -> None: ...
    @overload
    def __init__(self, dtype: int, outputs: int, inputs: int, data: int) -> None: ...
    @property
    def bytes(self) -> int: ...

def matrix_bytes(dtype: int, outputs: int, inputs: int) -> int: ...
def unpack_rows(matrix: PackedMatrix, first: int, count: int, to: int) -> None: ...

class LinearProduct:
    matrix: PackedMatrix
    bias: int
    out: int

    def __init__(self) -> None: ...

class LinearCall:
    x: int
    type: int
    stride: int
    tokens: int

    def __init__(self) -> None: ...

class LinearRunner:
    def __init__(self, pool: Pool, isa: int, tiles_from: list[int]) -> None: ...
    def pack(self, data: int, type: int, stride: int, to: PackedMatrix) -> None: ...
    def run(self, call: LinearCall, products: list[LinearProduct]) -> None: ...

class NormCall:
    x: int
    added: int
    weight: int
    type: int
    stride: int
    rows: int
    width: int
    eps: float
    sum: int
    out: int

    def __init__(self) -> None: ...

class Heads:
    x: int
    heads: int
    width: int
    norm: int
    whole: bool
    sums: int

    def __init__(self) -> None: ...

class HeadsCall:
    queries: Heads
    keys: Heads
    tokens: int
    eps: float
    cos: int
    sin: int
    rope_dim: int
    interleaved: bool

    def __init__(self) -> None: ...

class ManyTokens:
    counts: int
    added: int
    sum: int

    def __init__(self) -> None: ...

class CachedHeads:
    data: int
    stride: int
    head_stride: int
    codes: int
    scales: int

    def __init__(self) -> None: ...

class AttendedSequence:
    queries: int
    keys: CachedHeads
    values: CachedHeads
    new_keys: int
    new_values: int
    tokens: int
    positions: int
    first: int
    blocks: int
    out: int

    def __init__(self) -> None: ...

class AttendedBatch:
    queries: int
    new_keys: int
    new_values: int
    keys: CachedHeads
    values: CachedHeads
    out: int
    sequences: int
    count: int

    def __init__(self) -> None: ...

class AttentionShape:
    heads: int
    kv_heads: int
    width: int
    value_width: int
    scale: float
    window: int
    sinks: int

    def __init__(self) -> None: ...

class RowRunner:
    def __init__(self, pool: Pool, isa: int) -> None: ...
    def norm(self, call: NormCall) -> None: ...
    def heads(self, call: HeadsCall) -> None: ...
    def route(self, config: RouterConfig, call: RouterCall, more: ManyTokens) -> None: ...
    def attend(self, shape: AttentionShape, sequences: list[AttendedSequence]) -> None: ...
    def attend_batch(self, shape: AttentionShape, batch: AttendedBatch) -> None: ...
    def attention_bytes(self) -> int: ...

class StepRope:
    dim: int
    interleaved: bool
    magnitude: float
    frequencies: int

    def __init__(self) -> None: ...

class StepAttention:
    heads: int
    kv_heads: int
    head_dim: int
    rank: int
    query_rank: int
    plain_dim: int
    rope_key_dim: int
    value_dim: int
    rope: int
    qk_norm: int
    clip: float
    scale: float
    eps: float

    def __init__(self) -> None: ...

class StepSizes:
    hidden: int
    vocabulary: int
    eps: float
    activation: int
    expert_width: int
    shared_width: int
    dense_width: int
    expert_dtype: int
    attention_dtype: int
    network_dtype: int
    tiles_from_bf16: int
    tiles_from_int8: int
    tiles_from_int4: int

    def __init__(self) -> None: ...

class StepLayer:
    attention: StepAttention
    attention_norm: int
    feed_forward_norm: int
    query: PackedMatrix
    key: PackedMatrix
    value: PackedMatrix
    output: PackedMatrix
    query_bias: int
    key_bias: int
    value_bias: int
    output_bias: int
    query_norm: int
    key_norm: int
    query_down: PackedMatrix
    query_down_bias: int
    expand: int
    gate: int
    gate_bias: int
    experts: int
    network: int
    shared_gate: int

    def __init__(self) -> None: ...

class StepNetwork:
    sizes: StepSizes
    router: RouterConfig
    embedding: int
    norm: int
    head: PackedMatrix

    def __init__(self) -> None: ...
    def add_layer(self, layer: StepLayer) -> None: ...
    def add_rope(self, rope: StepRope) -> None: ...

class StepCached:
    values: int
    codes: int
    scales: int

    def __init__(self) -> None: ...

class StepLayerCache:
    first: StepCached
    second: StepCached

    def __init__(self) -> None: ...

class StepCache:
    table: int
    slots: int
    length: int
    blocks: int

    def __init__(self) -> None: ...
    def add_layer(self, layer: StepLayerCache) -> None: ...

class StepCall:
    tokens: int
    numbers: int
    slots: int
    positions: int
    counts: int
    forced_ids: int
    forced_weights: int
    logits: int
    ids: int
    weights: int
    scores: int
    selection_scores: int
    times: int
    phase_times: int

    def __init__(self) -> None: ...

class DecodeStep:
    def __init__(self, pool: Pool, isa: int, network: StepNetwork) -> None: ...
    def run(self, cache: StepCache, call: StepCall) -> None: ...

max_step_tokens: int
cache_block: int
step_phases: list[str]
