"""What can go wrong while starting or stopping, each as one sentence for the person at the terminal."""


class SupervisorError(Exception):
    """Starting or stopping failed; `str()` is the sentence, `code` is stable."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class StopRequested(Exception):
    """Ctrl-C or `make down` arrived while something was still starting."""
