"""Bounds of what one request may ask for, and of how long things may take."""

from __future__ import annotations

from dataclasses import dataclass

from unmask.core.errors import UserError

LOCAL = ("127.0.0.1", "localhost", "::1")  # names of this machine to itself
ALTERNATIVES = 20  # runners-up of a token
STOPS, STOP = 4, 256  # stop strings, and characters of one


@dataclass(frozen=True)
class Limits:
    """Bounds of what one request may ask for, and of how long things may take.

    Limits:
        max_length: the most tokens of a text, given ones counted, of models that take more
        max_steps: the most steps of a text
        max_texts: the most texts that one request may ask for
        max_body: the most bytes of a request
        max_queue: the most texts that may wait for a model
        timeout: seconds in which a text must be done, waiting included
        patience: seconds a client has to send its request, and to take each part of the answer
        grace: seconds that running requests have to finish when the server is stopped
    """

    max_length: int = 4096
    max_steps: int = 1024
    max_texts: int = 16
    max_body: int = 2**20
    max_queue: int = 256
    timeout: float = 120.0
    patience: float = 20.0
    grace: float = 60.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise UserError(f"{name} must be above 0, not {value}")


def bounded(name: str, value: int, most: int) -> None:
    if value > most:
        raise UserError(f"{name} is at most {most} here, not {value}")
