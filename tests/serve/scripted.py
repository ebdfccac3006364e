"""A real server whose model writes what a test has scripted.

The engine, its KV cache and the server are the real ones; the model is small and random, and a
constraint on every answer lets it sample nothing but the script. What is found in the KV cache,
and what a client gets, are therefore those of a model that answers so.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import tokenizers
import torch
import uvicorn
from family_templates import FAMILIES, Family
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tokenizers import AddedToken

import stock
from moesaic.engine.async_llm import AsyncLLM, Engine
from moesaic.engine.batcher_thread import BatcherThread, Callback
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.gate_stats import NO_GATE
from moesaic.engine.input_processor import InputProcessor
from moesaic.engine.loading import load
from moesaic.engine.preparation import prepare
from moesaic.engine.process.client import EngineState
from moesaic.engine.request import Request
from moesaic.engine.run_stats import RunStats
from moesaic.engine.sampling.sampled import Alternative, Sampled
from moesaic.models.bundled_model import default_model
from moesaic.models.text.tokenizer import Tokenizer
from moesaic.serve.app import make_app
from moesaic.serve.server_settings import ServerSettings
from moesaic.serve.service import Service

NAME = "scripted"
Script = Callable[[str], str]  # from a prompt's text to the answer's


@dataclass(slots=True)
class Exchange:
    """A request of the engine: its prompt, the tokens that answered it, and the queue's client."""

    prompt: list[int]
    answer: list[int]
    client: str


@dataclass(slots=True)
class Received:
    """A request of HTTP, as the server got it."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    data: bytearray = field(default_factory=bytearray)
    status: int | None = None

    @property
    def body(self) -> Any:
        return json.loads(bytes(self.data))


class OneText:
    """A constraint that allows one text alone. Where a grammar constrains the answer, too, the text
    must match it."""

    failure: str | None = None
    complete = False
    accepting = True

    def __init__(self, tokens: Sequence[int], grammar: Any) -> None:
        self._tokens, self._at, self._grammar = tokens, 0, grammar

    def forbidden(self, vocabulary: int) -> torch.Tensor:
        next_token = self._tokens[self._at]
        if self._grammar is not None:
            assert not self._grammar.forbidden(vocabulary)[next_token], "not in the grammar"
        forbidden = torch.ones(vocabulary, dtype=torch.bool)
        forbidden[next_token] = False
        return forbidden

    def advance(self, token: int) -> None:
        self._at += 1
        if self._grammar is not None:
            self._grammar.advance(token)


class ScriptedEngine:
    """A `BatcherThread` with the methods of an engine in a process of its own."""

    def __init__(self, folder: Path, settings: EngineSettings, end: str) -> None:
        """`end`: the token that ends an answer which has no end of its own."""
        self._model = load(folder, settings)
        self._engine = BatcherThread(self._model)
        self.sequences = self._model.plan.capacity.sequences
        self._begin(end)

    def _begin(self, end: str) -> None:
        self.state = EngineState(True)
        self.end = self.input_processor.tokenizer.added[end]
        self.script: Script = lambda prompt: "Done."
        self.split: Callable[[str], list[str]] = lambda text: [text]  # tokens do not join pieces
        self.exchanges: list[Exchange] = []

    @property
    def input_processor(self) -> InputProcessor:
        return self._engine.input_processor

    @property
    def forked(self) -> bool:
        return self._engine.forked

    def refuse_fork(self) -> None:
        self._engine.refuse_fork()

    def submit(self, request: Request, callback: Callback) -> None:
        tokenizer, prompt = self.input_processor.tokenizer, list(request.prompt)
        text = self.script(tokenizer.decode(prompt, skip_special=False))
        pieces = [tokenizer.encode(each, special=False) for each in self.split(text)]
        answer = [token for piece in pieces for token in piece]
        self.exchanges.append(Exchange(prompt, answer, request.client))
        if not set(answer[-1:]) & tokenizer.eos_ids:
            answer = [*answer, self.end]
        self._run(request, callback, answer)

    def _run(self, request: Request, callback: Callback, answer: Sequence[int]) -> None:
        script: Any = OneText(answer, request.sampling.constraint)
        request.sampling.constraint = script
        self._engine.submit(request, callback)

    def cancel(self, request: Request) -> None:
        self._engine.cancel(request)

    def stats(self) -> RunStats:
        return self._engine.stats()

    def close(self, error: BaseException | None = None) -> None:
        self._engine.close(error)


class InstantEngine(ScriptedEngine):
    """The same without a model and without a KV cache: quick, where these do not matter."""

    def __init__(self, folder: Path, settings: EngineSettings, end: str) -> None:
        prepared = prepare(folder, settings)
        self._processor = prepared.input_processor
        self.sequences = prepared.plan.capacity.sequences
        self._begin(end)

    @property
    def input_processor(self) -> InputProcessor:
        return self._processor

    @property
    def forked(self) -> bool:
        return False

    def refuse_fork(self) -> None:
        pass

    def cancel(self, request: Request) -> None:
        pass

    def stats(self) -> RunStats:
        return RunStats(0, 0, 0, 0, 0.0, None, 0, None, gate=NO_GATE)

    def close(self, error: BaseException | None = None) -> None:
        pass

    def _run(self, request: Request, callback: Callback, answer: Sequence[int]) -> None:
        """All tokens at once, and none that a grammar forbids."""
        constraint, vocabulary = (
            request.sampling.constraint,
            self.input_processor.tokenizer.vocabulary,
        )
        for token in answer:
            assert constraint is None or not constraint.forbidden(vocabulary)[token], "not allowed"
            alternatives = (Alternative(token, -0.5),) if request.params.logprobs else ()
            chunk = request.accept(Sampled(token, -0.5, alternatives))
            callback(chunk)
            if chunk.finish_reason is not None:
                return


class ScriptedLLM(AsyncLLM):
    def __init__(self, engine: ScriptedEngine) -> None:
        self._model = None
        self._engine = cast(Engine, engine)  # of which nothing is asked but requests
        self._mailbox = None
        self._client: Any = engine


class _Recording:
    """A layer that keeps what was received."""

    def __init__(self, app: ASGIApp, received: list[Received]) -> None:
        self._app, self._received = app, received

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {key.decode(): value.decode() for key, value in scope["headers"]}
        query = scope["query_string"].decode()
        kept = Received(scope["method"], scope["path"], query, headers)
        self._received.append(kept)

        async def receive_kept() -> Message:
            message = await receive()
            kept.data.extend(message.get("body", b""))
            return message

        async def send_kept(message: Message) -> None:
            kept.status = message.get("status", kept.status)
            await send(message)

        await self._app(scope, receive_kept, send_kept)


@dataclass(frozen=True, slots=True)
class ScriptedServer:
    address: str
    engine: ScriptedEngine
    tokenizer: Tokenizer
    received: list[Received]

    def answer(self, *texts: str) -> None:
        """Answer the next requests with these texts, in order."""
        left = list(texts)
        self.engine.script = lambda prompt: left.pop(0)

    def answer_to(self, answers: dict[str, str], otherwise: str = "Done.") -> None:
        """Answer a prompt by which of the keys it has last: clients ask in any order."""

        def script(prompt: str) -> str:
            places = {key: place for key in answers if (place := prompt.rfind(key)) >= 0}
            return answers[max(places, key=lambda key: places[key])] if places else otherwise

        self.engine.script = script

    def forget(self) -> None:
        self.received.clear()
        self.engine.exchanges.clear()


def save_model(folder: Path, family: Family) -> None:
    """A random model with the tokenizer of the bundled one, to which the family's tokens are added,
    and the family's chat template."""
    backend = tokenizers.Tokenizer.from_file(str(Path(default_model()) / "tokenizer.json"))
    backend.add_special_tokens([AddedToken(each, special=True) for each in family.special])
    backend.add_tokens([AddedToken(each, normalized=False) for each in family.added])
    stock.save(
        stock.make(
            "olmoe",
            vocab_size=backend.get_vocab_size(),
            num_hidden_layers=1,
            max_position_embeddings=1 << 18,
        ),
        folder,
    )
    backend.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(family.template)
    ends = [backend.token_to_id(each) for each in family.ends]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": family.ends[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@contextmanager
def scripted_server(
    family: str,
    context: int = 16_384,
    settings: ServerSettings | None = None,
    kind: type[ScriptedEngine] = ScriptedEngine,
) -> Iterator[ScriptedServer]:
    """A server of a model of this family."""
    chosen = FAMILIES[family]
    with TemporaryDirectory() as folder:
        save_model(Path(folder), chosen)
        engine = kind(
            Path(folder),
            EngineSettings(max_model_len=context, threads=1, max_sequences=4, accelerator="none"),
            chosen.ends[0],
        )
        try:
            serving = settings or ServerSettings(model_names=(NAME,), keep_alive_s=0.2, log="json")
            yield from _served(engine, serving)
        finally:
            engine.close()


def _served(engine: ScriptedEngine, settings: ServerSettings) -> Iterator[ScriptedServer]:
    service = Service(ScriptedLLM(engine), settings)
    received: list[Received] = []
    app = _Recording(make_app(service, lambda request: None), received)
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([bound])))
        thread.start()
        try:
            address = f"http://127.0.0.1:{bound.getsockname()[1]}"
            yield ScriptedServer(address, engine, engine.input_processor.tokenizer, received)
        finally:
            server.should_exit = True
            thread.join()
