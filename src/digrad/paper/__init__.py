"""The paper's two experiments, claim by claim: what ``digrad reproduce`` runs."""

from digrad.paper.cifar import reproduce_cifar
from digrad.paper.claims import Claim, ClaimTable
from digrad.paper.link_bias import LinkBias, reproduce_links
from digrad.paper.logistic import reproduce_logistic
from digrad.paper.reproduction import Reproduction

__all__ = [
    "Claim",
    "ClaimTable",
    "LinkBias",
    "Reproduction",
    "reproduce_cifar",
    "reproduce_links",
    "reproduce_logistic",
]
