"""Claims of a paper, what was measured, and whether they hold: as data, as JSON and as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from digrad._internal.formatting import markdown_table, shown
from digrad._internal.tables import Table

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided: too few iterations"
PARTLY = "holds only "  # and where
SEPARATOR = " / "  # between settings

figure = partial(shown, digits=3, absent="never")  # a number in a sentence


@dataclass(frozen=True)
class Claim:
    """One claim in one setting.

    Args:
        number: Which claim of the paper.
        claim: The claim in words.
        setting: The setting of the test.
        run: The run directory of that setting.
        measured: The result, as a sentence with the numbers.
        holds: ``"holds"``, ``"does not hold"``, ``"holds only for ..."``, or ``"undecided: too few iterations"`` where
            the runs were too short to tell.
        rule: When it counts as holding.
        numbers: The numbers of the sentence by name; None where there is none (never reached, not finite).
    """

    number: int
    claim: str
    setting: str
    run: str
    measured: str
    holds: str
    rule: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ruling:
    """Ruling of all settings together on one claim."""

    number: int
    claim: str
    holds: str


@dataclass(frozen=True)
class ClaimTable:
    """All claims of one experiment, the content of ``claims.json``.

    Args:
        title: Title of the experiment.
        claims: One row per claim and setting.
        verdicts: One per claim.
        choices: Choices where the paper leaves something open.
        figures: Captions by the names of the files in ``figures``.
    """

    title: str
    claims: Sequence[Claim]
    verdicts: Sequence[Ruling]
    choices: Mapping[str, str]
    figures: Mapping[str, str] = field(default_factory=dict)

    def table(self) -> Table:
        """Return one row per claim and setting."""
        return Table(
            tuple(
                {
                    "claim": f"({c.number}) {c.claim}",
                    "setting": c.setting,
                    "measured": c.measured,
                    "holds": c.holds,
                }
                for c in self.claims
            )
        )

    def to_markdown(self) -> str:
        """Return the content of ``claims.md``."""
        verdicts = [
            (f"({v.number}) {v.claim}", f"**{v.holds.replace(SEPARATOR, '<br>')}**") for v in self.verdicts
        ]
        claims = [(f"({c.number}) {c.claim}", c.setting, c.measured, f"**{c.holds}**") for c in self.claims]
        lines = [f"# {self.title}", "", *markdown_table(("claim", "holds?"), verdicts)]
        lines += ["", "## What was measured", ""]
        lines += markdown_table(("claim", "setting", "measured", "holds?"), claims)
        rules = {(claim.number, claim.claim): claim.rule for claim in self.claims}
        lines += ["", "## When a claim counts as holding", ""]
        lines += [f"- ({number}) {claim}: {rule}" for (number, claim), rule in rules.items()]
        lines += ["", "## What the paper leaves open, and what was chosen", ""]
        lines += [f"- **{name}**: {text}" for name, text in self.choices.items()]
        return "\n".join(lines) + "\n"


def verdicts(claims: Sequence[Claim]) -> list[Ruling]:
    """Return what all settings together say about each claim."""
    judged = []
    for number, claim in sorted({(claim.number, claim.claim) for claim in claims}):
        rows = [row for row in claims if row.number == number]
        holding = [row for row in rows if row.holds == HOLDS]
        partly = [row for row in rows if row.holds.startswith(PARTLY)]
        where = SEPARATOR.join(
            [
                *(row.setting for row in holding),
                *(f"{row.setting}: {row.holds.removeprefix(PARTLY)}" for row in partly),
            ]
        )
        absent = UNDECIDED if any(row.holds == UNDECIDED for row in rows) else FAILS
        overall = HOLDS if len(holding) == len(rows) else f"{PARTLY}for: {where}" if where else absent
        judged.append(Ruling(number, claim, overall))
    return judged
