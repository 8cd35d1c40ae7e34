import pytest

from workers.environments.tool_calls import BadCall, Call, read_calls, write_call

PYTHON = {
    "type": "function",
    "function": {
        "name": "python",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    },
}
LOOK_UP = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {
            "properties": {"town": {"type": "string"}, "years": {"type": "array"}, "most": {"type": "integer"}}
        },
    },
}
TOOLS = [PYTHON, LOOK_UP]


def test_both_native_forms_say_the_same():
    json_form = '<tool_call>\n{"name": "python", "arguments": {"code": "x = \\"1\\"\\nprint(x)"}}\n</tool_call>'
    xml_form = (
        '<tool_call>\n<function=python>\n<parameter=code>\nx = "1"\nprint(x)\n</parameter>\n</function>\n</tool_call>'
    )
    assert (
        read_calls(json_form, TOOLS) == read_calls(xml_form, TOOLS) == [Call("python", {"code": 'x = "1"\nprint(x)'})]
    )


def test_only_the_outermost_line_breaks_of_a_parameter_are_layout():
    text = "<tool_call><function=python><parameter=code>\n\n  a\n\n</parameter></function></tool_call>"
    assert read_calls(text, TOOLS) == [Call("python", {"code": "\n  a\n"})]


def test_several_calls_keep_their_order_and_a_thought_calls_nothing():
    calls = [write_call("python", code=str(n)) for n in range(3)]
    assert read_calls(f"first {calls[0]} then {calls[1]}", TOOLS) == [Call("python", {"code": c}) for c in "01"]
    assert read_calls(f"<think>{calls[0]}</think>{calls[2]}", TOOLS) == [Call("python", {"code": "2"})]
    assert read_calls("no call", TOOLS) == []


def test_parameters_that_are_no_strings_are_json():
    values = "".join(f"<parameter={k}>{v}</parameter>" for k, v in (("town", "12"), ("years", "[1, 2]"), ("most", "3")))
    text = f"<tool_call><function=look_up>{values}</function></tool_call>"
    assert read_calls(text, TOOLS) == [Call("look_up", {"town": "12", "years": [1, 2], "most": 3})]


def test_real_line_breaks_and_arguments_in_a_string_are_understood():
    assert read_calls('<tool_call>{"name": "python", "arguments": {"code": "a\nb"}}</tool_call>', TOOLS) == [
        Call("python", {"code": "a\nb"})
    ]
    assert read_calls('<tool_call>{"name": "python", "arguments": "{\\"code\\": \\"a\\"}"}</tool_call>', TOOLS) == [
        Call("python", {"code": "a"})
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("print(1)", "expected {"),
        ("[1]", "expected {"),
        ('{"name": "python"}', "expected {"),
        ('{"name": 1, "arguments": {}}', "expected {"),
        ('{"name": "python", "arguments": [1]}', "expected {"),
        ("[" * 5000, "expected {"),
        ('{"name": "shell", "arguments": {}}', "there is no function 'shell'; there is python, look_up"),
        ('{"name": "python", "arguments": {}}', "python: the argument code is missing"),
        ('{"name": "python", "arguments": {"code": "1", "x": 1}}', "python: there is no argument 'x'; there is code"),
        ('{"name": "python", "arguments": {"code": 1}}', "python: expected a JSON string for the argument code"),
        ('{"name": "look_up", "arguments": {"most": true}}', "expected a JSON integer"),
        ("<function=look_up><parameter=years>1, 2</parameter></function>", "expected a JSON array"),
        ("<function=python></function>", "the argument code is missing"),
    ],
)
def test_a_call_that_cannot_be_made_says_what_was_expected(text, problem):
    (found,) = read_calls(f"<tool_call>{text}</tool_call>", TOOLS)
    assert isinstance(found, BadCall) and problem in found.problem


def test_a_call_that_was_cut_off_is_a_bad_one():
    first = write_call("python", code="1")
    assert read_calls(f'{first}<tool_call>{{"name": "py', TOOLS) == [
        Call("python", {"code": "1"}),
        BadCall("the call does not end with </tool_call>"),
    ]
