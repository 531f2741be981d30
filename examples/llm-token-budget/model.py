"""Stands in for the language model: a local function, so nothing is sent anywhere.

It repeats the words of the prompt, a token each, until it has written `max_tokens`. Two words in a prompt make it fail:
`unavailable` before it has done anything, `break` in the middle of its answer.
"""

import itertools
import time
from collections.abc import Iterator

#: How long an answer gets if nobody limits it.
LONGEST_ANSWER = 500
BREAKS_AFTER = 2


class ModelUnavailable(Exception):
    """The model was not reached. Nothing was used."""


class ModelFailed(Exception):
    """The model stopped in the middle of its answer."""


class Answer:
    """An answer in the making: iterate to have it written."""

    def __init__(self, prompt: str, max_tokens: int | None, seconds_per_token: float) -> None:
        self._words = prompt.split()
        if "unavailable" in self._words:
            raise ModelUnavailable("the model cannot be reached")
        self.prompt_tokens = len(self._words)
        self._length = LONGEST_ANSWER if max_tokens is None else min(max_tokens, LONGEST_ANSWER)
        self._seconds_per_token = seconds_per_token

    def __iter__(self) -> Iterator[str]:
        for number, word in enumerate(itertools.islice(itertools.cycle(self._words), self._length)):
            if number == BREAKS_AFTER and "break" in self._words:
                raise ModelFailed(f"the connection broke after {number} tokens")
            yield word
            time.sleep(self._seconds_per_token)
