"""What an experiment's runs came to, as Tables 1 and 2 of arXiv 2608.24870 have it: pure functions on reward curves.

    curves ──whole()──▶ those that reached the budget; short(): all others, by name
       └─▶ summary   a row a setting and method: means over runs; method minus baseline over pairs, mean ± sample s.d.
       └─▶ pairs     a row a pair: the difference of each seed

A pair is two runs of equal setting and seed, the method's and the baseline's; it counts if both are whole. Curves are
in [0, 1], differences in points, a hundredth of that.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from advantage.metrics import PairedDifference, auc_trapezoid, end_reward, learning_composite, paired_difference

Key = tuple[str, str, int]  # setting, method, seed
Curve = Sequence[float]
Metric = Callable[[Curve], float]
COMPOSITE = 10  # updates that it needs


def metrics_of(budget: int) -> dict[str, Metric]:
    """The metrics that curves of so many points have."""
    found = {"AUC": auc_trapezoid, "end reward": end_reward}
    return found | ({"C_10": learning_composite} if budget >= COMPOSITE else {})


def whole(curves: Mapping[Key, Curve], budget: int) -> dict[Key, Curve]:
    """The curves that have a point for each of `budget` updates."""
    return {key: curve for key, curve in curves.items() if len(curve) == budget}


def short(curves: Mapping[Key, Curve], budget: int) -> dict[Key, str]:
    """How far each of the others got, in words."""
    others = curves.keys() - whole(curves, budget).keys()
    return {key: f"{len(curve)} of {budget} updates" for key, curve in curves.items() if key in others}


def difference(
    curves: Mapping[Key, Curve], setting: str, method: str, baseline: str, metric: Metric
) -> tuple[list[int], PairedDifference] | None:
    """Seeds whose pairs are there, and method minus baseline over them; None without a pair. curves: whole ones."""
    seeds = [s for (of, name, s) in curves if (of, name) == (setting, method) and (setting, baseline, s) in curves]
    if not seeds:
        return None
    own, others = ([curves[setting, name, seed] for seed in seeds] for name in (method, baseline))
    return seeds, paired_difference(own, others, metric)


def summary(curves: Mapping[Key, Curve], budget: int, baseline: str) -> list[dict[str, str | int]]:
    """A row for each setting and method that `curves` names, in its order."""
    found, rows = whole(curves, budget), []
    for setting, method in dict.fromkeys((setting, method) for setting, method, _ in curves):
        own = [curve for (of, name, _), curve in found.items() if (of, name) == (setting, method)]
        row: dict[str, str | int] = {"setting": setting, "method": method, "runs": len(own)}
        for name, metric in metrics_of(budget).items():
            row[name] = f"{math.fsum(map(metric, own)) / len(own):.3f}" if own else "-"
        compared = method != baseline
        for name, metric in metrics_of(budget).items():
            paired = difference(found, setting, method, baseline, metric) if compared else None
            row.setdefault("pairs", len(paired[0]) if paired else "-")
            row[f"Δ {name}"] = points(paired[1]) if paired else "-"
        rows.append(row)
    return rows


def pairs(curves: Mapping[Key, Curve], budget: int, baseline: str) -> list[dict[str, str | int]]:
    """A row for each pair that counts."""
    found, rows = whole(curves, budget), []
    for setting, method, seed in found:
        if method != baseline and (setting, baseline, seed) in found:
            row: dict[str, str | int] = {"setting": setting, "method": method, "seed": seed}
            for name, metric in metrics_of(budget).items():
                row[f"Δ {name}"] = (
                    f"{100 * (metric(found[setting, method, seed]) - metric(found[setting, baseline, seed])):+.2f}"
                )
            rows.append(row)
    return rows


def points(found: PairedDifference) -> str:
    """mean ± sample s.d. in points, and how many of the pairs are positive."""
    spread = "" if math.isnan(found.sd) else f" ± {100 * found.sd:.2f}"
    positive = sum(each > 0 for each in found.differences)
    return f"{100 * found.mean:+.2f}{spread} ({positive} of {len(found.differences)} positive)"
