"""What the three chat APIs share: a conversation becomes requests of the engine, and the form in
which their answers are read."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from starlette.requests import Request as HttpRequest

from moesaic.engine.request import Request, Sender
from moesaic.serve.answer_format import AnswerFormat, answer_format
from moesaic.serve.client_name import client_name
from moesaic.serve.conversation import conversation_tokens
from moesaic.serve.generation import Generation
from moesaic.serve.request_record import record_of
from moesaic.serve.sampling import chat_params
from moesaic.serve.schemas import ChatRequest
from moesaic.serve.service import Service


class Answers(NamedTuple):
    generation: Generation
    format: AnswerFormat


async def begin_answers(
    request: HttpRequest, service: Service, asked: ChatRequest, user: str | None
) -> Answers:
    sender = Sender(client_name(request, user))
    record = record_of(request)
    record.client = sender.client
    requests, form = await asyncio.to_thread(_requests, service, asked, sender)
    return Answers(service.begin(requests, record), form)


def _requests(
    service: Service, asked: ChatRequest, sender: Sender
) -> tuple[list[Request], AnswerFormat]:
    processor = service.processor
    tokenizer = processor.tokenizer
    params = chat_params(asked, processor.defaults, processor.context)
    tokens = conversation_tokens(asked, tokenizer)
    service.check_length(tokens)
    form = answer_format(service.formats, asked, tokens, tokenizer)
    return processor.completions(tokens, form.params(params, tokenizer), sender), form
