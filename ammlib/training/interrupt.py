"""Ctrl-C without losing work."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stop_between_steps() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM into a request that the loop asks for; a second one interrupts at once."""
    requested = False

    def request(number: int, frame: object) -> None:
        nonlocal requested
        if requested:
            raise KeyboardInterrupt
        requested = True

    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield lambda: False
        return
    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
