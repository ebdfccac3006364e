"""Reads a config.json into an `Architecture`, or says why the model cannot be run."""

from __future__ import annotations

import os
from collections.abc import Iterable

from moesaic.core.errors import BadCheckpoint
from moesaic.core.parsing import short
from moesaic.model_info.config_reader import ConfigReader
from moesaic.model_info.dense_models import refuse_dense
from moesaic.model_info.expert_shape import ACTIVATIONS, ClampedSwiglu, ExpertShape
from moesaic.model_info.model_config import model_spec, open_config
from moesaic.model_info.model_families import FAMILIES
from moesaic.model_info.model_spec import ModelSpec
from moesaic.model_info.network import (
    AttentionSpec,
    DenseSpec,
    GroupedAttentionSpec,
    LatentAttentionSpec,
    LayerSpec,
    LinearAttentionSpec,
    NetworkSpec,
    NormSpec,
    QkNorm,
    Rope,
    RoutedSpec,
    RouterRule,
    SharedSpec,
)
from moesaic.model_info.quantization.read import read_quantization
from moesaic.models.configs.architecture import Architecture
from moesaic.models.configs.config_fields import refuse_not_understood
from moesaic.models.configs.families import NOT_IMPLEMENTED, RUNNABLE, RunnableFamily
from moesaic.models.configs.rope_config import read_rope, score_magnitude


def read_architecture(path: str | os.PathLike[str]) -> Architecture:
    """The decoder that `path` describes: a config.json, or a directory that contains one."""
    config = open_config(path)
    _refuse_unknown(config)
    architecture = architecture_of(config, model_spec(config))
    refuse_not_understood(config, RUNNABLE[architecture.spec.family])
    return architecture


def architecture_of(config: ConfigReader, spec: ModelSpec) -> Architecture:
    """The shapes of `spec`, the rules of `config`."""
    _refuse_what_cannot_run(config, spec)
    family = RUNNABLE[spec.family]
    return Architecture(
        spec=spec,
        network=read_network(config, spec),
        unused_layers=_unused_layers(config, family),
        centred_norms=family.centred_norms,
    )


def _refuse_unknown(config: ConfigReader) -> None:
    """Before the simulator's reader does, which may know architectures only it can use."""
    model_type = config.value("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        refuse_dense(config)
        what = f"unsupported architecture {short(model_type)}"
        if isinstance(model_type, str) and model_type in NOT_IMPLEMENTED:
            what = f"{what} ({NOT_IMPLEMENTED[model_type]} is not implemented)"
        config.fail("model_type", f"{what}; can be run: {_listed(RUNNABLE)}")


def _listed(families: Iterable[str]) -> str:
    return ", ".join(sorted(families))


def _refuse_what_cannot_run(config: ConfigReader, spec: ModelSpec) -> None:
    if spec.family not in RUNNABLE:
        known = _listed(RUNNABLE)
        what = f"architecture {spec.family!r} can be simulated but not run; can be run: {known}"
        raise BadCheckpoint(config.path, "model_type", what)
    read_quantization(config)


def _unused_layers(config: ConfigReader, family: RunnableFamily) -> int:
    if not family.predicts_further:
        return 0
    names = ("num_nextn_predict_layers", "num_mtp_layers")
    return max(config.count(name, minimum=0) if config.has(name) else 0 for name in names)


# From a config and a family's rules to the network, one `LayerSpec` per layer.

_SWIGLU_ALPHA, _SWIGLU_LIMIT = 1.702, 7.0  # of gpt-oss, where a file does not say
_LATENT_EPS = 1e-6  # of the norms inside latent attention, whatever the config says


def read_network(config: ConfigReader, spec: ModelSpec) -> NetworkSpec:
    """The shapes of `spec`, the rules of `config`."""
    return _NetworkReader(config, spec).network()


class _NetworkReader:
    def __init__(self, config: ConfigReader, spec: ModelSpec) -> None:
        self._config, self._spec = config, spec
        self._family: RunnableFamily = RUNNABLE[spec.family]
        self._eps = config.number("rms_norm_eps")
        self._activation = config.choice("hidden_act", ACTIVATIONS)

    def network(self) -> NetworkSpec:
        spec = self._spec
        rope = read_rope(self._config, spec, self._family)
        attentions = [self._attention(number, rope) for number in range(spec.num_layers)]
        router = self._router()
        blocks = [self._feed_forward(number, router) for number in range(spec.num_layers)]
        embedding, residual, logits = self._multipliers()
        norm = self._norm(spec.hidden_size)
        return NetworkSpec(
            hidden=spec.hidden_size,
            vocabulary=spec.vocab_size,
            layers=tuple(
                LayerSpec(norm, attention, norm, block, residual)
                for attention, block in zip(attentions, blocks, strict=True)
            ),
            norm=norm,
            tied_head=spec.tied_embeddings,
            embedding_scale=embedding,
            logit_divisor=logits,
        )

    def _norm(self, width: int) -> NormSpec:
        return NormSpec(width, self._eps, self._family.centred_norms)

    def _attention(self, number: int, rope: Rope) -> AttentionSpec:
        spec = self._spec
        if number in spec.linear_layers:
            assert spec.linear_attention is not None, "the model has linear attention"
            return LinearAttentionSpec(spec.linear_attention, self._eps)
        if spec.latent_attention is not None:
            return self._latent(rope)
        return self._grouped(rope, spec.sliding_window if number in spec.window_layers else 0)

    def _scale(self) -> float:
        if self._family.multipliers:
            return self._config.number("attention_multiplier")
        return float(self._spec.head_dim**-0.5)

    def _grouped(self, rope: Rope, window: int) -> GroupedAttentionSpec:
        spec, family, config = self._spec, self._family, self._config
        scope = family.qk_norm(config)
        qk_norm = None
        if scope != "none":
            qk_norm = QkNorm(scope, self._eps, family.centred_norms)
        return GroupedAttentionSpec(
            heads=spec.num_heads,
            kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            rope=rope,
            scale=self._scale(),
            input_bias=family.input_bias(config),
            output_bias=family.output_bias(config),
            qk_norm=qk_norm,
            clip=config.number("clip_qkv") if family.clips and config.has("clip_qkv") else None,
            window=window,
            sinks=spec.attention_sinks,
            gate=spec.output_gate,
        )

    def _latent(self, rope: Rope) -> LatentAttentionSpec:
        spec, family, config = self._spec, self._family, self._config
        sizes = spec.latent_attention
        assert sizes is not None, "the model has latent attention"
        if spec.num_kv_heads != spec.num_heads:
            what = f"expected {spec.num_heads}, as many as num_attention_heads, with latent"
            config.fail("num_key_value_heads", f"{what} attention; not {spec.num_kv_heads}")
        return LatentAttentionSpec(
            heads=spec.num_heads,
            rank=sizes.kv_lora_rank,
            query_rank=sizes.q_lora_rank,
            plain_dim=sizes.qk_nope_head_dim,
            rope_dim=sizes.qk_rope_head_dim,
            value_dim=sizes.v_head_dim,
            rope=rope,
            scale=self._scale() * score_magnitude(config) ** 2,
            norm_eps=_LATENT_EPS,
            input_bias=family.input_bias(config),
            output_bias=family.output_bias(config),
            fp32_norms=family.centred_norms,
        )

    def _feed_forward(self, number: int, router: RouterRule) -> RoutedSpec | DenseSpec:
        spec = self._spec
        if number not in spec.moe_layers:
            return DenseSpec(self._expert(spec.dense_intermediate))
        shared = None
        if spec.shared_intermediate:
            shared = SharedSpec(self._expert(spec.shared_intermediate), self._family.shared_gate)
        clamped = self._clamped_swiglu() if self._family.clamped_swiglu else None
        sizes = (spec.hidden_size, spec.expert_intermediate)
        expert = ExpertShape(*sizes, self._activation, spec.expert_bias, clamped)
        layer = spec.moe_layers.index(number)
        return RoutedSpec(layer, spec.num_experts, router, expert, shared)

    def _expert(self, width: int) -> ExpertShape:
        return ExpertShape(self._spec.hidden_size, width, self._activation)

    def _clamped_swiglu(self) -> ClampedSwiglu:
        """Older files state only the limit."""
        config = self._config
        fields = {"swiglu_alpha": _SWIGLU_ALPHA, "swiglu_limit": _SWIGLU_LIMIT}
        alpha, limit = (config.number(f) if config.has(f) else usual for f, usual in fields.items())
        return ClampedSwiglu(alpha, limit)

    def _router(self) -> RouterRule:
        spec, family = self._spec, self._family
        groups, top_groups = self._groups()
        # Softmax over the chosen experts is softmax over all of them, then normalised.
        return RouterRule(
            top_k=spec.top_k,
            scoring="sigmoid" if spec.scoring == "sigmoid" else "softmax",
            normalized=spec.normalized_topk,
            factor=self._config.number("routed_scaling_factor") if family.scaled else 1.0,
            in_fp32=family.router_in_fp32,
            fp32_weight=family.router_kept_in_fp32,
            round_weights=family.round_weights,
            logit_bias=family.router_bias,
            correction_bias=family.correction_bias,
            groups=groups,
            top_groups=top_groups,
            group_score=family.group_score or "max",
        )

    def _groups(self) -> tuple[int, int]:
        """How many groups the experts form and how many of them a token may use; 1, 1 for none."""
        config, spec, family = self._config, self._spec, self._family
        if family.group_score is None:
            return 1, 1
        method = family.topk_methods[0]
        if config.has("topk_method"):
            method = config.choice("topk_method", family.topk_methods)
        if method == "greedy":
            return 1, 1
        groups, top = config.count("n_group"), config.count("topk_group")
        experts = spec.num_experts
        if experts % groups:
            config.fail("n_group", f"expected a divisor of {experts} (experts), not {groups}")
        if family.group_score == "best-two" and experts // groups < 2:
            config.fail("n_group", f"expected groups of two or more experts, not {groups} groups")
        if top > groups:
            config.fail("topk_group", f"expected at most {groups} (groups), not {top}")
        return groups, top

    def _multipliers(self) -> tuple[float, float, float]:
        """Granite's constants: of the embedding, of what layers add, and the logits' divisor."""
        if not self._family.multipliers:
            return 1.0, 1.0, 1.0
        config = self._config
        names = ("embedding_multiplier", "residual_multiplier", "logits_scaling")
        embedding, residual, logits = (config.number(n) if config.has(n) else 1.0 for n in names)
        if not logits:
            config.fail("logits_scaling", "expected a number above 0, which logits are divided by")
        return embedding, residual, logits
