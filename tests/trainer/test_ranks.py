"""What ranks tell each other; two real ranks are in test_update.py and test_processes.py."""

import pickle

import pytest

from pipeline.errors import BadTrajectory, HeadraceError, OutOfSequence
from trainer.ranks import ALONE


@pytest.mark.parametrize("error", [BadTrajectory("SIZE", "too large"), OutOfSequence("EARLY", "publish first")])
def test_an_error_with_a_code_reaches_other_ranks_as_it_is(error):
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), found.code, str(found)) == (type(error), error.code, str(error))


def test_each_rank_gets_its_own_answer_or_the_error_of_one():
    assert ALONE.on_each(lambda: 3) == 3
    with pytest.raises(HeadraceError, match="gone"):
        ALONE.on_each(lambda: (_ for _ in ()).throw(HeadraceError("gone")))
