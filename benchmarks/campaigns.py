"""What the campaigns of ``make soak`` found, against what is wanted of them, as a part of RESULTS.md.

The campaigns keep what they find in ``campaigns.json`` (``tests.support.campaign_record``). Not a
benchmark: nothing here is a time to be reached, but numbers of faults that nothing was lost in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).with_name("campaigns.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One target: so many *cases* in the campaign *name*, which is *test*; *control* makes it fail."""

    target: str
    name: str
    cases: Mapping[str, int]
    test: str
    control: str


WANTED: Final = (
    Wanted(
        target="500 times kill -9 of an API worker, 500 times of PostgreSQL: no acknowledged write lost,"
        " each with one event, in order",
        name="row-crashes",
        cases={"workers": 500, "postgres": 500},
        test="test_row_crashes::test_the_same_for_hundreds_of_kills",
        control="test_row_crashes::test_a_loss_is_seen",
    ),
    Wanted(
        target="500 times kill -9 of the operator: the warehouse is what the last acceptable commit says",
        name="operator",
        cases={"kills": 500},
        test="test_real_life::test_five_hundred_kills",
        control="test_real_life::test_an_operator_that_does_nothing_is_found_out",
    ),
    Wanted(
        target="500 times kill -9 of a deployment under way: nothing half deployed",
        name="apply",
        cases={"kills": 500},
        test="test_kill::test_killed_at_random_moments_hundreds_of_times",
        control="test_kill::test_steps_that_are_not_recorded_lose_archived_values",
    ),
    Wanted(
        target="50,000 webhook events through 10 kinds of faults, 500 times kill -9 of the dispatcher:"
        " none lost, none out of order",
        name="dispatcher",
        cases={"events": 50_000, "kills": 500},
        test="test_webhook_campaign::test_nothing_is_lost_or_out_of_order_when_the_dispatcher_is_killed",
        control="test_webhook_campaign::test_a_dispatcher_that_counts_before_it_delivers_is_found_to_lose",
    ),
    Wanted(
        target="disk full 30 times: none lost, the service back within 10 s",
        name="disk-full",
        cases={"fills": 30},
        test="test_disk_full::test_thirty_fills",
        control="test_row_crashes::test_a_loss_is_seen",
    ),
    Wanted(
        target="network cut 100 times: none lost, the service back within 10 s",
        name="network-cuts",
        cases={"cuts": 100},
        test="test_network_cuts::test_a_hundred_cuts_of_all_kinds",
        control="test_network_cuts::test_a_client_that_believes_what_nobody_answered_is_seen",
    ),
    Wanted(
        target="steps of the clock: none lost, the service back within 10 s",
        name="clock-steps",
        cases={"steps": 12},
        test="test_clock_steps::test_all_steps_of_all_clocks",
        control="test_clock_steps::test_versions_that_take_the_clock_as_it_is_are_seen",
    ),
    Wanted(
        target="100,000 generated filters against a second interpreter: no difference",
        name="filters",
        cases={"filters": 100_000},
        test="test_filter_oracle::test_very_many_random_filters",
        control="test_filter_oracle::test_a_broken_oracle_is_noticed",
    ),
    Wanted(
        target="5,000 requests of two warehouses that differ in what is hidden: no byte differs",
        name="non-interference",
        cases={"requests": 5_000},
        test="test_non_interference::test_five_thousand_requests",
        control="test_non_interference::test_whoever_sees_the_rows_sees_the_difference",
    ),
    Wanted(
        target="8 people at once, 5,000 requests each, some given up: no row of somebody else",
        name="foreign-rows",
        cases={"requests": 40_000},
        test="test_foreign_rows::test_nobody_is_told_of_the_rows_of_others",
        control="test_foreign_rows::test_an_answer_that_went_to_somebody_else_is_found",
    ),
)


def read(file: Path = FILE) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def short(found: Mapping[str, Any]) -> list[str]:
    """Return the campaigns that did not hold, or had fewer cases than wanted."""
    return [each.name for each in WANTED if not is_met(each, found.get(each.name))]


def is_met(wanted: Wanted, run: Mapping[str, Any] | None) -> bool:
    return bool(run and run["held"]) and all(
        run["cases"].get(kind, 0) >= number for kind, number in wanted.cases.items()
    )


def lines(found: Mapping[str, Any], reasons: Mapping[str, str]) -> Iterator[str]:
    """Yield the part of the page; *reasons* say by name why a campaign misses something of its target."""
    yield "## Reliability and security"
    yield ""
    yield (
        "Campaigns of `make soak`; each has a small form in `make test`, and a negative control that makes"
        " the same harness fail. None lost in N cases bounds the rate of losses at about 3/N."
    )
    yield ""
    yield "| target | cases | lost or wrong | bounds | | beside it | measured | campaign, and its control |"
    yield "|---|---|---:|---:|---|---|---|---|"
    for wanted in WANTED:
        yield f"| {_row(wanted, found.get(wanted.name), is_missed=wanted.name in reasons)} |"
    if reasons:
        yield ""
        yield "Missed, and why:"
        yield ""
        yield from (f"- **{name}**: {why}" for name, why in reasons.items())


def _row(wanted: Wanted, run: Mapping[str, Any] | None, *, is_missed: bool) -> str:
    tests = f"`{wanted.test}`, `{wanted.control}`"
    if run is None:
        return f"{wanted.target} | not run | | | **MISSED** | | | {tests}"
    cases = ", ".join(f"{number:,} {kind}" for kind, number in run["cases"].items())
    bound = 3 / max(1, min(run["cases"].get(kind, 0) for kind in wanted.cases))
    verdict = "met" if is_met(wanted, run) and not is_missed else "**MISSED**"
    lost = "0" if run["held"] else "**some**"
    when = f"{run['date']}, {run['seconds']:,} s"
    said = f"{cases} | {lost} | {bound:.2%} | {verdict} | {run['told']} | {when}"
    return f"{wanted.target} | {said} | {tests}"
