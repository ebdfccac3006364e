"""From a submitted message to a request of the engine, checked as the caller checks its own."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from moesaic.engine.input_processor import InputProcessor
from moesaic.engine.output_text import OutputText
from moesaic.engine.preparation import Prepared
from moesaic.engine.process.messages import Submit
from moesaic.engine.request import Request
from moesaic.models.text.tokenizer import Tokenizer


class Admission:
    """The tokenizer is opened for the first constraint on a text: nothing else needs it."""

    def __init__(self, folder: Path, prepared: Prepared) -> None:
        self._folder, self._prepared = folder, prepared

    def is_quick(self, form: str | None) -> bool:
        """Whether no grammar has to be compiled for it."""
        if form is None:
            return True
        made = vars(self).get("_constraining")  # not for the first time
        return isinstance(made, InputProcessor) and made.knows_form(form)

    def request(self, submit: Submit) -> Request:
        params = submit.sampling.params()
        processor = self._prepared.input_processor
        if params.form is not None:
            processor = self._constraining
        request = processor.of_tokens(submit.prompt, params, submit.number)
        request.max_new_tokens = min(request.max_new_tokens, submit.max_new_tokens)
        request.output = OutputText(None)  # texts are the caller's
        request.boundaries = submit.boundaries
        request.client, request.priority = submit.client, submit.priority
        return request

    @cached_property
    def _constraining(self) -> InputProcessor:
        spec, context = self._prepared.spec, self._prepared.plan.capacity.length
        tokenizer = Tokenizer.open(self._folder, spec.vocab_size)
        return InputProcessor(spec, tokenizer, self._prepared.eos_ids, context)
