"""The ledger: when an outcome counts, and how much of what was there before it keeps."""

from tests.mutations.mutation import Mutation

TESTS = "tests/pipeline/test_"

MUTATIONS = [
    Mutation(
        "the ledger weighs evidence in receipt order",
        "pipeline/lua/_evidence.lua",
        "local weight = run.rho ^ (newest - event)",
        "local weight = 1",
        f"{TESTS}occupy.py",
    ),
    Mutation(
        "the ledger forgets evidence at another ρ",
        "pipeline/lua/_evidence.lua",
        "local decay = run.rho ^ (event - newest)",
        "local decay = 0.9 ^ (event - newest)",
        f"{TESTS}occupy.py",
    ),
    Mutation(
        "a credit does not fade what was before",
        "pipeline/lua/credit.lua",
        "retention * p[1] + outcome",
        "p[1] + outcome",
        f"{TESTS}credit.py",
    ),
]
