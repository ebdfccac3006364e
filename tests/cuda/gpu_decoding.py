"""A small model that decodes on a real GPU with a conductor, and the same model on the CPU."""

from __future__ import annotations

from dataclasses import replace

import torch
from random_experts import expert_weights, filled_store

from moesaic.kernels.gpu.driver import current_context
from moesaic.kernels.quantized_linear import DenseQuantizer
from moesaic.machines.captured.conductor import Conductor, Copying, ExpertMemory
from moesaic.machines.captured.cpu_runner import CpuRunner
from moesaic.machines.captured.decode_step import DecodeStep
from moesaic.machines.captured.mailbox import Mailbox, MailboxShape
from moesaic.machines.captured.step_parts import Replayed, StepParts
from moesaic.machines.real.pinned import Pinned
from moesaic.model_info.dense_bytes import DensePrecision
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.configs.architecture import Architecture
from moesaic.models.configs.synthetic_architecture import plain_architecture, synthetic_architecture
from moesaic.models.experts.expert_service import ResidentExperts, RoutedTokens
from moesaic.models.placed import placed_decoder
from moesaic.models.synthetic_model import synthetic_decoder
from moesaic.models.token_batch import Segment
from moesaic.policies.belief import Belief
from moesaic.policies.brain.c_functions import native_brain
from moesaic.policies.compose import Composition
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.shape import Shape
from network_changes import with_attention
from scattered_blocks import scatter

LENGTH = 300

# Of one token, per layer: ranked experts, their scores, the weights of the first top-k.
Chosen = list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def small_architecture() -> Architecture:
    """The rules of Qwen3-30B-A3B in a hundredth of its size."""
    whole = synthetic_architecture("qwen3-30b-a3b", 3)
    spec = replace(
        whole.spec, hidden_size=256, expert_intermediate=96, num_experts=16, top_k=4,
        num_heads=8, num_kv_heads=2, head_dim=64, vocab_size=1000,
    )  # fmt: skip
    return with_attention(plain_architecture(spec), scale=0.125)


class DecodingScene:
    def __init__(
        self, architecture: Architecture, policies: PolicySet, dtype: str, slots: int,
        batch: int = 1, own_routers: bool = False, records: bool = False,
        belief: Belief | None = None, dense: str = "bf16",
    ) -> None:  # fmt: skip
        self.architecture, self.policies = architecture, policies
        spec = architecture.spec
        packer = DenseQuantizer(DensePrecision.of(dense))
        self.decoder = synthetic_decoder(architecture, "bf16", "reference", packer)
        self.store = filled_store(architecture, dtype)
        size = self.store.kernel.block_bytes
        self.pinned = Pinned(self.store.block(0, 0).data_ptr(), self.store.bytes)
        shape = Shape(spec.num_moe_layers, spec.num_experts, spec.top_k)
        composition = Composition(policies, shape, slots)
        usual = Belief.from_points({1: 5000}, {1: 60000}, 5000, 90000, max(batch, 2))
        belief = usual if belief is None else belief
        box = MailboxShape(batch, spec.hidden_size, spec.top_k, spec.num_experts, composition.ranks)
        self.mailbox = Mailbox(box)
        self.slab = torch.zeros(slots, size, dtype=torch.uint8, device="cuda")
        self.cpu = CpuRunner(architecture.expert_shape, dtype, 2, 4)
        self._copies = torch.cuda.Stream()
        places = self.pinned.address, self.slab.data_ptr()
        memory = ExpertMemory(*places, slots, size, owners=(self.pinned, self.slab))
        self.conductor = Conductor(
            native_brain(composition.brain(belief), batch, composition.ranks), self.mailbox, memory,
            self.cpu.addresses(), Copying(current_context(), self._copies.cuda_stream),
            records=records,
        )  # fmt: skip
        experts = composition.placement()
        indices = [e.layer * spec.num_experts + e.expert for e in experts]
        for expert, slot in zip(experts, self.conductor.place(indices), strict=True):
            self.slab[slot].copy_(self.store.block(*expert))
        on_gpu = placed_decoder(self.decoder, "cuda")
        cache = BlockCache(spec, batch, LENGTH, torch.bfloat16, "cuda")
        scatter(cache)
        ranks, layers = self.mailbox.shape.ranks, spec.num_moe_layers
        self.replayed = Replayed.space(layers, batch, ranks, spec.top_k)
        given = None if own_routers else self.replayed
        self.step = DecodeStep(StepParts(on_gpu, cache, self.mailbox, dtype), batch, given)
        self.step.prepare()
        self._stream, self._graph, self._number = torch.cuda.Stream(), None, 0

    def decode(
        self, tokens: list[int], positions: list[int], choices: list[Chosen] | None = None
    ) -> torch.Tensor:
        """Logits of one new token per sequence, with these experts for each."""
        rows = list(range(len(tokens)))
        for row, chosen in enumerate(choices or []):
            for layer, (ranked, scores, weights) in enumerate(chosen):
                self.replayed.ranked[layer, row] = ranked
                self.replayed.scores[layer, row] = scores
                self.replayed.weights[layer, row] = weights
        self.step.inputs.write(tokens, rows, positions)
        with torch.cuda.stream(self._stream):
            if self._number == 1:  # the first one runs as it is, and compiles
                self._graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self._graph, stream=self._stream):
                    self.step.launch()
            self.conductor.begin(self._number, len(tokens), is_long=self.step.is_long)
            self.step.launch() if self._graph is None else self._graph.replay()
            self.conductor.finish()
            self._stream.synchronize()
        self._number += 1
        return self.step.logits.cpu()

    def close(self) -> None:
        del self.conductor
        self.cpu.close()
        self.pinned.close()


class Recording:
    """Computes experts and remembers who was chosen, layer by layer."""

    def __init__(self, scene: DecodingScene) -> None:
        spec = scene.architecture.spec
        self._ranks = scene.mailbox.shape.ranks
        self._experts = ResidentExperts(scene.store.kernel, spec.num_moe_layers, spec.num_experts)
        for which, weights in expert_weights(scene.architecture):
            self._experts.put(which, weights)
        self.chosen: Chosen = []

    def compute(self, routed: RoutedTokens) -> torch.Tensor:
        choice = routed.choice
        ranked = torch.topk(choice.preference, self._ranks, dim=-1).indices[0]
        ranked[: choice.experts.shape[1]] = choice.experts[0]
        scores = choice.scores[0, ranked]
        self.chosen.append((ranked, scores, choice.weights[0].float()))
        return self._experts.compute(routed)


def cpu_logits(scene: DecodingScene, tokens: list[int]) -> tuple[torch.Tensor, list[Chosen]]:
    """Of every token of a sequence, by the plain network with the same packed experts; and whom
    its routers chose."""
    cache = BlockCache(scene.architecture.spec, 1, LENGTH, torch.bfloat16)
    service, rows, choices = Recording(scene), [], []
    for token in tokens:
        service.chosen = []
        hidden = scene.decoder.forward(torch.tensor([token]), [Segment(0, 1)], cache, service)
        rows.append(scene.decoder.logits(hidden)[0])
        choices.append(service.chosen)
    return torch.stack(rows), choices
