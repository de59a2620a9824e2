"""Splink on the labelled people, run by ``bench_matching`` in an environment that has splink.

Arguments: a CSV file with the columns of ``people`` and the person of each row. Prints one JSON object: seconds
of training and of prediction, and F1 with its threshold, the best of all thresholds: a person who tunes could
not do better. The model follows splink's own guide for people: comparisons of its library for names, birthdays
and numbers, term frequencies, blocking by eight rules, u from random pairs and m by expectation maximisation.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from itertools import combinations

import pandas as pd  # type: ignore[import-untyped,import-not-found,unused-ignore]
import splink.comparison_library as cl  # type: ignore[import-not-found,unused-ignore]
from splink import (  # type: ignore[import-not-found,unused-ignore]
    DuckDBAPI,
    Linker,
    SettingsCreator,
    block_on,
)

warnings.filterwarnings("ignore")


def main() -> None:
    table = pd.read_csv(sys.argv[1], dtype=str)
    by_person: dict[str, list[int]] = {}
    for number, person in enumerate(table.pop("person")):
        by_person.setdefault(person, []).append(number)
    true = {pair for rows in by_person.values() for pair in combinations(rows, 2)}
    table.insert(0, "unique_id", range(len(table)))
    started, used = time.perf_counter(), time.process_time()
    linker = Linker(DuckDBAPI().register(table), _settings(), log_level="ERROR")
    training = linker.training
    training.estimate_probability_two_random_records_match(
        [block_on("birth_date", "given_name"), block_on("phone", "given_name")], recall=0.8
    )
    training.estimate_u_using_random_sampling(max_pairs=1e6, seed=1)
    trained_on = []
    for rule in (("given_name", "surname"), ("birth_date",), ("surname", "city"), ("phone",)):
        try:
            training.estimate_parameters_using_expectation_maximisation(block_on(*rule))
            trained_on.append("+".join(rule))
        except ValueError:  # a level that never occurs in the block
            continue
        if len(trained_on) == 2:
            break
    trained = time.perf_counter()
    found = linker.inference.predict(threshold_match_probability=0.01).as_pandas_dataframe()
    ended, used = time.perf_counter(), time.process_time() - used
    best = _best(found, true)
    told = {"train_s": trained - started, "predict_s": ended - trained, "trained_on": trained_on}
    told["processor_s"] = used
    print(json.dumps({**told, **best}))


def _settings() -> SettingsCreator:
    names = ("given_name", "surname")
    return SettingsCreator(
        link_type="dedupe_only",
        blocking_rules_to_generate_predictions=[
            block_on("birth_date"),
            block_on("phone"),
            block_on("email"),
            block_on("given_name", "surname"),
            block_on("surname", "postcode"),
            block_on("street", "city"),
            block_on("given_name", "postcode"),
            block_on("surname", "substr(birth_date, 1, 4)"),
        ],
        comparisons=[
            *(cl.NameComparison(name) for name in names),
            cl.DamerauLevenshteinAtThresholds("birth_date", [1, 2]),
            cl.JaroWinklerAtThresholds("street", [0.9, 0.7]),
            cl.JaroWinklerAtThresholds("city", [0.9, 0.7]).configure(
                term_frequency_adjustments=True
            ),
            cl.DamerauLevenshteinAtThresholds("postcode", [1, 2]),
            cl.DamerauLevenshteinAtThresholds("phone", [1, 2]),
            cl.JaroWinklerAtThresholds("email", [0.9, 0.7]),
        ],
        retain_intermediate_calculation_columns=False,
    )


def _best(found: pd.DataFrame, true: set[tuple[int, int]]) -> dict[str, float]:
    ordered = found.sort_values("match_weight", ascending=False)
    hits, best = 0, {"f1": 0.0, "precision": 0.0, "recall": 0.0, "match_weight": 0.0}
    columns = (ordered.unique_id_l, ordered.unique_id_r, ordered.match_weight)
    for number, (left, right, weight) in enumerate(zip(*columns, strict=True), start=1):
        hits += (min(left, right), max(left, right)) in true
        f1 = 2 * hits / (number + len(true))
        if f1 > best["f1"]:
            best = {
                "f1": f1,
                "precision": hits / number,
                "recall": hits / len(true),
                "match_weight": float(weight),
            }
    return best


if __name__ == "__main__":
    main()
