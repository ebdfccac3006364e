"""A problem as text to learn: plain, or as a conversation of one or more turns.

Every piece says whether it is asked (by the prompt's author) or answered (by the model).
No torch here: worker processes import this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from training.problems import Problem
from training.tokenizer import ASSISTANT, END, USER

_PLAIN_SHARE, _LONG_TALK_SHARE = 0.4, 0.2  # of the documents; the others are talks of one turn
_MOST_TURNS = 4


class Piece(NamedTuple):
    text: str
    answered: bool


Document = Sequence[Piece]


def plain_prompt(question: str) -> str:
    return f"Question: {question}\nAnswer:"


def chat_prompt(question: str) -> str:
    """What the chat template makes of a first message."""
    return f"{USER}{question}{ASSISTANT}"


def plain(problem: Problem) -> Document:
    return (
        Piece(plain_prompt(problem.question), False),
        Piece(f" {problem.worked}{END}", True),
    )


def talk(problems: Sequence[Problem]) -> Document:
    pieces: list[Piece] = []
    for problem in problems:
        pieces.append(Piece(chat_prompt(problem.question), False))
        pieces.append(Piece(f"{problem.worked}{END}", True))
    return pieces


def mixed(problems: Iterator[Problem], random: Random) -> Iterator[Document]:
    """All problems, each in one of the forms."""
    for problem in problems:
        draw = random.random()
        if draw < _PLAIN_SHARE:
            yield plain(problem)
        elif draw < _PLAIN_SHARE + _LONG_TALK_SHARE:
            turns = [problem]
            for _ in range(random.randrange(1, _MOST_TURNS)):
                turns.extend([more] if (more := next(problems, None)) else [])
            yield talk(turns)
        else:
            yield talk([problem])
