r"""Where a reply says its answer.

    … </think> so it is \boxed{\frac{1}{2}}.     boxed        \frac{1}{2}     the last one; its braces match
    … <answer> 84 </answer>                      tagged       84              the last one
    … 48 + 24 = 72. #### 1,072                   last_number  1,072

What comes before the end of a thought is no answer: final(reply) is what follows it, and nothing where it was cut.
"""

import re

THOUGHT, THOUGHT_ENDS = "<think>", "</think>"
BOXED = re.compile(r"\\f?boxed\s*\{")
TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
NUMBER = re.compile(r"(?<![\d)])-?\d[\d,]*(?:\.\d+)?")  # the minus of 9-2 is none of the number's


def final(reply: str) -> str:
    """The reply after its last thought; a template may have opened the thought before the reply began."""
    rest = reply.rpartition(THOUGHT_ENDS)[2]
    return "" if THOUGHT in rest else rest


def boxed(text: str) -> str | None:
    r"""What the last \boxed{…} holds; None without one, or if its braces do not match."""
    start = None
    for match in BOXED.finditer(text):
        start = match.end()
    if start is None:
        return None
    depth, at = 1, start
    while at < len(text):
        if text[at] == "\\":
            at += 1  # \{ and \} are braces to look at, not to match
        elif text[at] in "{}":
            depth += 1 if text[at] == "{" else -1
            if depth == 0:
                return text[start:at].strip()
        at += 1
    return None


def tagged(text: str) -> str | None:
    """What the last <answer>…</answer> holds."""
    found = TAGGED.findall(text)
    return found[-1].strip() if found else None


def last_number(text: str) -> str | None:
    """The last number in the text, as it is written there."""
    found = NUMBER.findall(text)
    return found[-1] if found else None


def number(text: str) -> float | None:
    """The number that the text is, thousands separated or not, in dollars or not."""
    try:
        return float(text.replace(",", "").strip().lstrip("$"))
    except ValueError:
        return None
