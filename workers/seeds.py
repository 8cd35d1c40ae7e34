"""Where chance in an episode comes from: from the run's seed, and from which episode it is.

    run.seed, prompt, visit, attempt ─▶ the environment's            group mates begin alike
             … and member, play      ─▶ its replies' sampling_seed   SGLang mixes in the position of each token

Whichever worker plays it, and whenever: the same again. An engine with --enable-deterministic-inference then gives the
same tokens, too; others take no notice.
"""

from hashlib import blake2b

from pipeline.ledger_types import Reservation


def of_environment(run_seed: int, reservation: Reservation) -> int:
    """32 bits."""
    return _of(run_seed, *_episode(reservation)) >> 31


def of_replies(run_seed: int, reservation: Reservation, member: int = 0, play: int = 0) -> int:
    """63 bits. play: how often this member was played before, and failed."""
    return _of(run_seed, *_episode(reservation), member, play)


def _episode(reservation: Reservation) -> tuple[str, int, int]:
    return reservation.prompt, reservation.visit, reservation.attempt


def _of(*what: object) -> int:
    return int.from_bytes(blake2b(repr(what).encode(), digest_size=8).digest()) >> 1
