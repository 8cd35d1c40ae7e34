"""What an episode's chance comes from: the run's seed and which episode it is, and nothing else."""

from dataclasses import replace

from pipeline.ledger_types import Reservation
from workers import seeds

EPISODE = Reservation("entry", "prompt-1", b"{}", 3, 4, 2, 0.5, attempt=1, visit=5)


def test_whoever_plays_an_episode_and_whenever_it_has_the_same_seeds():
    elsewhere = replace(EPISODE, entry="another", version=7, deadline=9, event=6, value=0.1)
    assert seeds.of_environment(1, elsewhere) == seeds.of_environment(1, EPISODE)
    assert seeds.of_replies(1, elsewhere, 2, 1) == seeds.of_replies(1, EPISODE, 2, 1)


def test_another_run_prompt_visit_or_attempt_has_others():
    others = [replace(EPISODE, prompt="prompt-2"), replace(EPISODE, visit=6), replace(EPISODE, attempt=2)]
    for of in (seeds.of_environment, seeds.of_replies):
        found = {of(1, EPISODE), of(2, EPISODE), *(of(1, other) for other in others)}
        assert len(found) == 5


def test_group_mates_begin_alike_and_answer_differently_and_so_does_a_member_that_is_played_again():
    found = {seeds.of_replies(1, EPISODE, member, play) for member in range(4) for play in range(3)}
    assert len(found) == 12


def test_seeds_have_the_bits_that_numpy_and_sglang_take():
    episodes = [replace(EPISODE, visit=visit) for visit in range(2_000)]
    environments = [seeds.of_environment(1, episode) for episode in episodes]
    replies = [seeds.of_replies(1, episode) for episode in episodes]
    assert 2**31 < max(environments) < 2**32 and 2**62 < max(replies) < 2**63
    assert min(environments + replies) >= 0


def test_rollouts_outside_the_ledger_differ_from_each_other_and_from_every_visit():
    problem = {"id": EPISODE.prompt}
    outside = [Reservation.outside_ledger(problem, "e", number=number) for number in range(8)]
    visits = [replace(EPISODE, visit=visit) for visit in range(8)]
    for of in (seeds.of_environment, seeds.of_replies):
        assert len({of(1, episode) for episode in outside + visits}) == 16
