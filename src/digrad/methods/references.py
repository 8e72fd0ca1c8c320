"""The publications of the methods: ``references.bib``, by the key that a method's ``reference`` names.

Only what is known for certain is given there: an entry without a DOI or without pages lacks them for that reason.

>>> BIBTEX["bo2026provably"].splitlines()[0]
'@misc{bo2026provably,'
"""

from pathlib import Path

#: Publications that were not opened: the method follows what others print of it. Checked by a test against its own
#: docstring, but not against the original.
NOT_OPENED = (
    "cattivelli2010diffusion",  # as X. Lian et al., NeurIPS 2017, who note that the order can be swapped
    "nedic2015distributed",
    "qureshi2022push",  # as the authors' code, github.com/qureshi-mi/PushSAGA
    "scutari2019distributed",
    "xi2018addopt",
    "xu2015augmented",  # as the ATC variant of push-pull
)


def _by_key(entries: str) -> dict[str, str]:
    listed = entries.strip().split("\n\n")
    return {entry[entry.index("{") + 1 : entry.index(",")]: entry for entry in listed}


BIBTEX: dict[str, str] = _by_key(Path(__file__).with_suffix(".bib").read_text(encoding="utf-8"))
