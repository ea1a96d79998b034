"""What all tests rely on: that Ctrl-C reaches them, and the processes that they start."""

import signal


def pytest_configure() -> None:
    """Listen to SIGINT even where the shell that started us in the background had it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
