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


class Coded(HeadraceError):
    """One class for several broken rules; `code` says which."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code

    def __reduce__(self):  # as ranks tell each other of it
        return type(self), (self.code, str(self))


class BadTrajectory(Coded, ValueError):
    """A trajectory that no trainer could use; `code` names what is wrong with it."""


class LedgerError(HeadraceError):
    """A broken contract of the ledger."""

    code = "LEDGER"


class UnknownRun(LedgerError, LookupError):
    """No ledger of this name in this Redis."""

    code = "UNKNOWN_RUN"


class OtherSettings(LedgerError, ConfigError):
    """A run of this name exists with other settings."""

    code = "OTHER_SETTINGS"


class OtherSchema(LedgerError, ConfigError):
    """A run of this name exists that another headrace made, and keeps in another way."""

    code = "OTHER_SCHEMA"


class RolledBack(LedgerError):
    """The ledger is behind what this process saw: Redis lost writes. The trainer joins again; all others retry."""

    code = "ROLLED_BACK"


class Fenced(LedgerError, PermissionError):
    """Another trainer joined after this one."""

    code = "FENCED"


class MissingBatch(LedgerError, LookupError):
    """A batch below the oldest one that is kept was asked for."""

    code = "MISSING"


class OutOfSequence(Coded, LedgerError, ValueError):
    """Consume, Credit, Publish or Checkpoint of a version whose turn it is not; `code` says which rule."""


class BadCredit(Coded, LedgerError, ValueError):
    """A credit that cannot be evidence; `code` names what is wrong with it."""
