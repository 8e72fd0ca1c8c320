"""Unreliable links: loss, delay, sleep, compression, noise, churn and simulated seconds."""

from digrad.links import compressors
from digrad.links.churn import Crash, Event, Join, Leave, Timeline
from digrad.links.clock import Clock, Exponential, Uniform
from digrad.links.delivery_schedule import DeliverySchedule
from digrad.links.links import Bursts, FixedDelay, Links, check_links

__all__ = [
    "Bursts",
    "Clock",
    "Crash",
    "DeliverySchedule",
    "Event",
    "Exponential",
    "FixedDelay",
    "Join",
    "Leave",
    "Links",
    "Timeline",
    "Uniform",
    "check_links",
    "compressors",
]
