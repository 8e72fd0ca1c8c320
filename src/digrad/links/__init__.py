"""Unreliable links: loss, delay, sleep, compression, noise, churn and simulated seconds."""

from digrad.links import compressors
from digrad.links.churn import ChurnSchedule, Crash, Event, Join, Leave
from digrad.links.clock import Clock, Exponential, Uniform
from digrad.links.delivery_schedule import DeliverySchedule
from digrad.links.links import Bursts, FixedDelay, Links, check_links

__all__ = [
    "Bursts",
    "ChurnSchedule",
    "Clock",
    "Crash",
    "DeliverySchedule",
    "Event",
    "Exponential",
    "FixedDelay",
    "Join",
    "Leave",
    "Links",
    "Uniform",
    "check_links",
    "compressors",
]
