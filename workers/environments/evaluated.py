"""Answers that a task's verifier evaluates as Python: they must be arithmetic or lists, or are no answers.

    countdown   94*4 - 61                        ──▶ sympy.parse_expr ──▶ 1.0
    countdown   print.__self__.exec("…")         ──▶ 0.0: parse_expr and eval would run it
    n_queens    [["_", "Q"], ["Q", "_"]]         ──▶ eval ──▶ 0.5

Code that an answer runs shares a process with the verifier, and could award itself any score.
"""

import ast

# Tasks whose verifier evaluates the answer: as an expression, always, or as lists, if it is not right as it stands.
EXPRESSIONS = {"countdown", "puzzle24", "simple_integration", "intermediate_integration", "polynomial_multiplication"}
LISTS = {"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"}
FUNCTIONS = {"Abs", "acos", "asin", "atan", "cos", "cosh", "exp", "log", "ln", "sin", "sinh", "sqrt", "tan", "tanh"}


def harmless(answer: str, task: str) -> bool:
    """Whether nothing runs when the task's verifier evaluates the answer, beside arithmetic."""
    if task not in EXPRESSIONS | LISTS:
        return True
    try:
        nodes = list(ast.walk(ast.parse(answer.strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError):
        return task in LISTS  # it cannot be evaluated; parse_expr rewrites the text first, and might make it so
    return all(map(_in_expression if task in EXPRESSIONS else _in_list, nodes))


def _in_expression(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS
    if isinstance(node, ast.Constant):  # sympy evaluates a text in its turn
        return isinstance(node.value, (int, float))
    return isinstance(node, (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Name, ast.Load, ast.operator, ast.unaryop))


def _in_list(node: ast.AST) -> bool:
    return isinstance(
        node,
        (ast.Expression, ast.List, ast.Tuple, ast.Constant, ast.Name, ast.Load, ast.UnaryOp, ast.unaryop),
    )
