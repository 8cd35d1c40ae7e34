import pytest

from workers.environments.answers import boxed, final, last_number, number, tagged


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{84}.", "84"),
        (r"\boxed{1} or rather \boxed{ \frac{1}{2} }", r"\frac{1}{2}"),
        (r"\boxed{\left\{1, 2\right\}}", r"\left\{1, 2\right\}"),
        (r"\fbox{1} \fboxed{2}", "2"),
        (r"\boxed{\text{a \} b}}", r"\text{a \} b}"),
        (r"\boxed{}", ""),
        (r"\boxed{84", None),
        (r"\boxed{84\\", None),
        ("84", None),
        ("\\boxed{" * 20_000, None),
    ],
)
def test_the_last_box_is_the_answer_with_its_own_braces(text, answer):
    assert boxed(text) == answer


def test_the_last_tagged_answer_counts():
    assert tagged("<answer>1</answer> no, <answer>\n2 </answer>") == "2"
    assert tagged("<answer>1") is tagged("1") is None


def test_numbers_are_read_as_people_write_them():
    assert last_number("48/2 = 24, 48+24 = 1,072.") == "1,072"
    assert last_number("2144-1072") == "1072", "a difference, no negative number"
    assert last_number("none") is None
    assert [number(text) for text in ("$1,072.50", "-3", "3 apples", "")] == [1072.5, -3.0, None, None]


def test_what_a_thought_says_is_no_answer():
    assert final(r"\boxed{1}</think>\boxed{2}") == r"\boxed{2}"
    assert final("no thought") == "no thought"


def test_a_thought_that_was_cut_is_all_thought():
    assert final(r"<think>maybe \boxed{3}") == ""
    assert final(r"<think>a</think> \boxed{1} <think>or <tool_call>") == ""
