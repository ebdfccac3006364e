"""What the three chat APIs share: a conversation becomes requests of the engine, and the form in
which their answers are read."""

from __future__ import annotations

from typing import NamedTuple

from moesaic.engine.request import Request, Sender
from moesaic.serve.answer_format import AnswerFormat, answer_format
from moesaic.serve.caller import Caller
from moesaic.serve.conversation import conversation_text
from moesaic.serve.generation import Generation
from moesaic.serve.sampling import answers_asked, chat_params
from moesaic.serve.schemas import ChatRequest
from moesaic.serve.service import Service


class Answers(NamedTuple):
    generation: Generation
    format: AnswerFormat


async def begin_answers(service: Service, asked: ChatRequest, caller: Caller) -> Answers:
    service.refuse_too_many(answers_asked(asked, service.processor.defaults))
    requests, form = await service.prepare(_requests, service, asked, caller.sender)
    return Answers(service.begin(requests, caller.record), form)


def _requests(
    service: Service, asked: ChatRequest, sender: Sender
) -> tuple[list[Request], AnswerFormat]:
    processor = service.processor
    tokenizer = processor.tokenizer
    params = chat_params(asked, processor.defaults, processor.context)
    text = conversation_text(asked, tokenizer)
    service.check_text(text)
    tokens = tokenizer.encode(text, special=False)
    service.check_length(tokens)
    form = answer_format(service.formats, asked, tokens, tokenizer)
    return processor.completions(tokens, form.params(params, tokenizer), sender), form
