"""What happens to a message on its way from one agent to another."""

from digrad.links import coders
from digrad.links.churn import Crash, Event, Join, Leave, Timeline
from digrad.links.clock import Clock, Exponential, Uniform
from digrad.links.description import Bursts, FixedDelay, Links
from digrad.links.door import LinkCode, check_given, code_of_link, identity
from digrad.links.fates import Fates
from digrad.links.rounded import Rounded, rounded
from digrad.links.seam import Link, heard, keeps_reference

__all__ = [
    "Bursts",
    "Clock",
    "Crash",
    "Event",
    "Exponential",
    "Fates",
    "FixedDelay",
    "Join",
    "Leave",
    "Link",
    "LinkCode",
    "Links",
    "Rounded",
    "Timeline",
    "Uniform",
    "check_given",
    "code_of_link",
    "coders",
    "heard",
    "identity",
    "keeps_reference",
    "rounded",
]
