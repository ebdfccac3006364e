"""Running a model from the command line: a line on what it will use, loading with a progress bar,
and an answer that Ctrl-C ends early."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from moesaic.cli.shared.accelerator_words import announce_accelerator
from moesaic.kernels.instruction_sets import choose, has_native

if TYPE_CHECKING:
    from moesaic.engine.completion import Chunk, Completion
    from moesaic.engine.loading import LoadedModel
    from moesaic.engine.preparation import Prepared
    from moesaic.engine.request import Request


@contextmanager
def loaded(prepared: Prepared, record: str | None = None) -> Iterator[LoadedModel]:
    """The model, while it is used."""
    model = _load(prepared, record)
    try:
        yield model
    except BaseException as error:
        model.close(error)
        raise
    model.close()


def follow_all(
    model: LoadedModel, requests: Sequence[Request], show: Callable[[Request, Chunk], None]
) -> None:
    """Generate all answers together, and show every piece as it comes. Ctrl-C ends those that
    have not ended: they are then `cancelled`, and the model can be asked again."""
    try:
        for request in requests:
            model.batcher.submit(request)
        while any(request.finish_reason is None for request in requests):
            for update in model.batcher.step():
                show(update.request, update.chunk)
    except KeyboardInterrupt:
        pass
    finally:
        for request in requests:
            model.batcher.cancel(request)


def follow(model: LoadedModel, request: Request, show: Callable[[Chunk], None]) -> Completion:
    """The whole answer, after showing it piece by piece. Ctrl-C ends it."""
    follow_all(model, [request], lambda _, chunk: show(chunk))
    if request.failure is not None:
        raise request.failure
    return request.completion()


def what_runs(prepared: Prepared) -> str:
    """One line for the user: which devices, which kernel, which precision."""
    from moesaic.hardware.host import usable_cores
    from moesaic.machines.accelerators import Automatic

    settings, plan = prepared.settings, prepared.plan
    threads = settings.threads or usable_cores()
    experts = f" with {plan.expert_dtype} experts" if plan.expert_dtype != plan.dtype else ""
    if plan.dense_dtype != plan.dtype:
        experts += f", other weights in {plan.dense_dtype}"
    cores = "1 thread" if threads == 1 else f"{threads} threads"
    kernel = _kernel_text(
        settings.kernel, plan.expert_dtype, prepared.opened.architecture.expert_shape.unusual
    )
    how = f"{kernel}, {plan.dtype}{experts}, {cores}; decode: {decoded_by(prepared)}"
    if not settings.capabilities.moves:
        named = "" if isinstance(settings.accelerator, Automatic) else "no accelerator: "
        return f"{named}the CPU computes everything with {how}"
    slots = f"{plan.capacity.slots} of {prepared.spec.num_expert_blocks} experts"
    link = "" if settings.capabilities.own_memory else f"copies at {settings.link_gb_s:g} GB/s, "
    return (
        f"{settings.accelerator} accelerator: it holds {slots} ({plan.cache_ratio:.0%}), {link}"
        f"policies {settings.policies}; {how}"
    )


def decoded_by(prepared: Prepared) -> str:
    """The executor of decode steps, and what keeps them from a faster one."""
    from moesaic.machines.support import ExecutorKind, refusal

    settings, plan = prepared.settings, prepared.plan
    preferred = ExecutorKind.CPU_STEP
    if settings.capabilities.moves:
        if not settings.capabilities.own_memory:
            return f"layerwise (the {settings.accelerator} accelerator is driven from Python)"
        preferred = ExecutorKind.CAPTURED
    why = refusal(preferred, prepared.opened.architecture.network, settings.kv_dtype)
    if why is None and plan.dtype != "bf16":
        why = f"{preferred.value} computes in bf16, not {plan.dtype}"
    if why is None and not has_native(settings.kernel, plan.expert_dtype):
        why = f"{preferred.value} needs a native kernel"
    return preferred.value if why is None else f"layerwise ({why})"


def where_experts_are(prepared: Prepared) -> str | None:
    """Text on how a packed model's experts are held; None: they are converted while they are
    read."""
    from moesaic.engine.packed_store import why_copied
    from moesaic.models.checkpoints.packed_experts import PackedExperts

    experts = prepared.opened.experts
    if not isinstance(experts, PackedExperts):
        return None
    reason = why_copied(prepared.settings)
    if reason is None:
        return f"experts: mapped from {experts.path}, shared with other processes"
    return f"experts: read from {experts.path} into memory of this process ({reason})"


def _kernel_text(wanted: str, expert_dtype: str, unusual: str | None) -> str:
    """`unusual`: what the native kernels do not compute (`ExpertShape.unusual`)."""
    name = choose(wanted)
    if not has_native(wanted, expert_dtype):
        return "the PyTorch reference kernel"
    if unusual is not None:
        return f"the PyTorch reference kernel ({name} kernels know no experts with {unusual})"
    return f"native {name} kernels"


def _load(prepared: Prepared, record: str | None) -> LoadedModel:
    from moesaic.cli.shared.output import progress
    from moesaic.cli.study.simulate_recording import announce_compilation
    from moesaic.engine.loading import load_prepared
    from moesaic.models.repacking import repacking

    announce_accelerator(prepared.settings)
    click.echo(what_runs(prepared), err=True)
    if (where := where_experts_are(prepared)) is not None:
        click.echo(where, err=True)
    note = repacking(prepared.opened, prepared.plan.expert_dtype)
    if note is not None:
        click.echo(str(note), err=True)
    if prepared.settings.capabilities.moves:  # else no planner is used
        announce_compilation()
    total = prepared.spec.num_expert_blocks
    with progress("loading experts", total) as advance:
        loaded = load_prepared(prepared, record, lambda done, of: advance())
    why = loaded.runner.machine.why_layerwise
    if why is not None and not decoded_by(prepared).startswith("layerwise"):
        click.echo(f"tokens are decoded layer by layer: {why}", err=True)
    return loaded
