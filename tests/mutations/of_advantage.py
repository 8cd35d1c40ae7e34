"""Advantages and evidence: wrong measures, wrong groups, wrong memory."""

from tests.mutations.mutation import Mutation

TESTS = "tests/advantage/test_"

MUTATIONS = [
    Mutation(
        "spo++ is normalized by trajectory",
        "advantage/spo_plus_plus.py",
        'normalization or "token"',
        'normalization or "trajectory"',
        f"{TESTS}spo_plus_plus.py",
    ),
    Mutation(
        "spo is normalized by token",
        "advantage/spo.py",
        'normalization or "trajectory"',
        'normalization or "token"',
        f"{TESTS}spo.py",
    ),
    Mutation(
        "the two normalizations are swapped",
        "advantage/normalization.py",
        'if measure == "trajectory":',
        'if measure == "token":',
        f"{TESTS}normalization.py",
    ),
    Mutation(
        "σ is that of the population",
        "advantage/normalization.py",
        "/ (total - 1))",
        "/ total)",
        f"{TESTS}normalization.py",
    ),
    Mutation(
        "reinforce++ is normalized by trajectory",
        "advantage/reinforce_plus_plus.py",
        'normalization or "token"',
        'normalization or "trajectory"',
        f"{TESTS}reinforce_plus_plus.py",
    ),
    Mutation(
        "grpo does not divide by the group's spread",
        "advantage/grpo.py",
        "lambda group: standardize(group, np.ones_like(group), EPSILON)",
        "lambda group: group - group.mean()",
        f"{TESTS}by_group.py",
    ),
    Mutation(
        "grpo adds another constant to the group's spread",
        "advantage/grpo.py",
        "EPSILON = 1e-6",
        "EPSILON = 1e-4",
        f"{TESTS}public_code.py",
    ),
    Mutation(
        "dr_grpo divides by the group's spread",
        "advantage/__init__.py",
        '"dr_grpo": dr_grpo',
        '"dr_grpo": grpo',
        f"{TESTS}by_group.py",
    ),
    Mutation(
        "rloo's baseline contains the trajectory itself",
        "advantage/rloo.py",
        "len(rewards) / others * ",
        "",
        f"{TESTS}by_group.py",
    ),
    Mutation(
        "groups are compared with each other",
        "advantage/groups.py",
        "members.setdefault(group, [])",
        "members.setdefault(None, [])",
        f"{TESTS}by_group.py",
    ),
    Mutation(
        "equal rewards whose mean rounds have an advantage",
        "advantage/groups.py",
        " if np.ptp(rewards) else np.zeros_like(rewards)",
        "",
        f"{TESTS}by_group.py",
    ),
    Mutation(
        "the overlong penalty begins a buffer too late",
        "advantage/overlong.py",
        "(limit - buffer - lengths)",
        "(limit - lengths)",
        f"{TESTS}overlong.py",
    ),
    Mutation(
        "evidence is forgotten at another ρ",
        "advantage/evidence.py",
        "RHO = 0.875",
        "RHO = 0.9",
        f"{TESTS}evidence.py",
    ),
    Mutation(
        "evidence is weighed in receipt order",
        "advantage/evidence.py",
        "weight = self.rho ** (newest - event)",
        "weight = 1.0",
        f"{TESTS}evidence.py",
    ),
    Mutation(
        "retention halves at another drift",
        "advantage/retention.py",
        "HALF_LIFE = 0.06",
        "HALF_LIFE = 0.05",
        f"{TESTS}retention.py",
    ),
    Mutation(
        "a changed policy forgets everything",
        "advantage/retention.py",
        "LEAST, MOST = 0.875, 0.96",
        "LEAST, MOST = 0.0, 0.96",
        f"{TESTS}retention.py",
    ),
]
