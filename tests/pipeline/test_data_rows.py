import pytest

from pipeline.data_files import Unusable
from pipeline.data_rows import problem_of

SOLUTION = "48/2 = <<48/2=24>>24 clips in May; 48+24 = 72.\n#### 1,072"
FRAMED = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is $17 \\cdot 2$?\n\nRemember "
    'to put your answer on its own line after "Answer:".'
)
USER = {"role": "user", "content": "How many?"}
SYSTEM = {"role": "system", "content": "Think."}


def problem(row):
    return problem_of(row, needs_answer=True)


@pytest.mark.parametrize(
    "row",
    [
        {"question": "How many?", "answer": "72"},
        {"problem": "How many?", "answer": "72"},
        {"prompt": "How many?", "answer": "72"},
        {"prompt": [USER], "label": "72"},
    ],
)
def test_plain_rows_and_those_of_dapo_say_the_same(row):
    assert problem(row) == {"question": "How many?", "answer": "72"}
    assert problem(row | {"level": 3}) == {"question": "How many?", "answer": "72", "level": 3}


def test_the_ground_truth_of_verl_is_the_answer():
    row = {"prompt": [USER], "reward_model": {"ground_truth": "34", "style": "rule"}, "extra_info": {"index": 3}}
    found = problem(row)
    assert (found["question"], found["answer"], found["extra_info"]) == ("How many?", "34", {"index": 3})


def test_dapos_frame_is_taken_off():
    assert problem({"prompt": [{"role": "user", "content": FRAMED}], "label": "34"}) == {
        "question": "What is $17 \\cdot 2$?",
        "answer": "34",
    }


def test_a_prompt_of_several_messages_is_kept_whole():
    found = problem({"prompt": [SYSTEM, USER], "label": 3})
    assert found == {"question": "How many?", "answer": 3, "messages": [SYSTEM, USER]}


def test_the_answer_proper_of_gsm8k_is_recognised():
    assert problem({"question": "q", "answer": SOLUTION}) == {"question": "q", "answer": "1,072", "solution": SOLUTION}
    assert problem({"question": "q", "answer": "no #### 3"}) == {"question": "q", "answer": "no #### 3"}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "found the keys none"),
        ({"text": "q"}, "found the keys text"),
        ({"question": 3, "answer": "1"}, 'expected "question" to be text, found 3'),
        ({"prompt": [], "label": "1"}, 'expected "prompt" to be text or a list'),
        ({"prompt": [{"role": "user"}], "label": "1"}, 'expected "prompt" to be text or a list'),
        ({"prompt": [USER, SYSTEM], "label": "1"}, "expected the user to speak last"),
        ({"prompt": [{"role": "user", "content": " "}], "label": "1"}, 'expected "prompt" to be text, found'),
        *(({"question": "q", "answer": bad}, 'expected an "answer"') for bad in (None, " ", True, [1], float("nan"))),
        ({"prompt": [USER], "reward_model": {"style": "rule"}}, 'expected an "answer"'),
    ],
)
def test_a_row_that_cannot_be_used_says_what_was_expected(row, reason):
    with pytest.raises(Unusable, match=reason):
        problem(row)
