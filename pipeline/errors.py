"""Every error of headrace: one class for one broken contract, with a short code a program can test.

An expected outcome (`Refused`, `Surplus`) is a value, never an exception. A message says what was expected, what was
found, and what to do.
"""


class HeadraceError(Exception):
    """Base of all; `code` is one upper-case word."""

    code = "FAILED"


class ConfigError(HeadraceError, ValueError):
    """A setting that cannot be used."""

    code = "CONFIG"


class BadTrajectory(HeadraceError, ValueError):
    """A trajectory that no trainer could use; `code` names what is wrong with it."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code
