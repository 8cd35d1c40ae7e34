"""A mistake that would be easy to make, as one textual change, and the test that must not let it pass."""

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutation(NamedTuple):
    """In the file `path`, `old` (which it has once) becomes `new`; `test`: what pytest is given."""

    title: str
    path: str
    old: str
    new: str
    test: str


def patched(mutation: Mutation, root: Path) -> str:
    """The text of its file in the tree `root`, mutated. Raises SystemExit if the mutation no longer applies."""
    text = (root / mutation.path).read_text()
    if (found := text.count(mutation.old)) != 1:
        raise SystemExit(
            f"mutation {mutation.title!r} no longer applies: expected once in {mutation.path}, found {found} times:\n"
            f"    {mutation.old}\nwrite it anew in tests/mutations"
        )
    return text.replace(mutation.old, mutation.new)
