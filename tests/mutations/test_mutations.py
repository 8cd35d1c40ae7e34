"""The mutations still fit the code: a change that one of them is about takes it along."""

import pytest

from tests.mutations.__main__ import MUTATIONS
from tests.mutations.mutation import ROOT, Mutation, patched


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.title)
def test_every_mutation_applies_and_names_a_test_that_exists(mutation):
    assert patched(mutation, ROOT) != (ROOT / mutation.path).read_text()
    file, _, name = mutation.test.partition("::")
    assert f"def {name}" in (ROOT / file).read_text()


def test_a_mutation_that_no_longer_applies_says_so():
    gone = Mutation("something", "advantage/rloo.py", "no such text", "", "")
    with pytest.raises(SystemExit, match=r"'something' no longer applies: expected once in advantage/rloo.py, found 0"):
        patched(gone, ROOT)
