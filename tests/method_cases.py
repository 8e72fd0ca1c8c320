"""One row per public method, with the facts that are measured; a method without a row fails the suite."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from digrad import methods as dg


@dataclass(frozen=True)
class Case:
    """A method with what it is expected to declare and to do."""

    label: str
    method: Any
    needs: frozenset[str]
    traffic: tuple[int, int | str]  # d-vectors and other numbers per edge and step; "n": one per agent
    rounds: int = 1


BOTH = frozenset({"row", "column"})
ROW = frozenset({"row"})
COLUMN = frozenset({"column"})
DOUBLY = frozenset({"doubly"})
MEAN = frozenset({"mean"})
AGENTS = 5  # rows of the case with one threshold per agent

CASES = (
    Case("CGT", dg.CGT(0.05, 2.0), BOTH, (2, 0)),
    Case("CGT-agents", dg.CGT(0.05, np.linspace(0.5, 2.5, AGENTS)[:, None]), BOTH, (2, 0)),
    Case("SoftCGT", dg.SoftCGT(0.05, 2.0), BOTH, (2, 0)),
    Case("AB", dg.AB(0.05), BOTH, (2, 0)),
    Case("PushPull", dg.PushPull(0.05), BOTH, (2, 0), 2),
    Case("AugPushPull", dg.AugPushPull(0.05), BOTH, (2, 0), 2),
    Case("NormalizedAB", dg.NormalizedAB(0.05), BOTH, (2, 0)),
    Case("FROST", dg.FROST(0.02), ROW, (2, "n")),
    Case("PushDIGing", dg.PushDIGing(0.05), COLUMN, (2, 1), 2),
    Case("PushSAGA", dg.PushSAGA(0.05), COLUMN, (2, 1), 2),
    Case("ADDOPT", dg.ADDOPT(0.05), COLUMN, (2, 1)),
    Case("SONATA", dg.SONATA(0.05), COLUMN, (2, 1), 2),
    Case("SGP", dg.SGP(0.05), COLUMN, (1, 1)),
    Case("SubgradientPush", dg.SubgradientPush(0.05), COLUMN, (1, 1)),
    Case("DSGT", dg.DSGT(0.05), DOUBLY, (2, 0), 2),
    Case("DSGT-row", dg.DSGT(0.05, mixing="row"), ROW, (2, 0), 2),
    Case("MomentumTracking", dg.MomentumTracking(0.02, 0.7), DOUBLY, (2, 0)),
    Case("MomentumTracking-row", dg.MomentumTracking(0.02, 0.7, mixing="row"), ROW, (2, 0)),
    Case("DGD", dg.DGD(0.05), DOUBLY, (1, 0)),
    Case("DGD-row", dg.DGD(0.05, mixing="row"), ROW, (1, 0)),
    Case("DGDATC", dg.DGDATC(0.05), DOUBLY, (1, 0)),
    Case("DGDATC-row", dg.DGDATC(0.05, mixing="row"), ROW, (1, 0)),
    Case("QGDSGDm", dg.QGDSGDm(0.05, 0.8), DOUBLY, (1, 0)),
    Case("QGDSGDm-row", dg.QGDSGDm(0.05, 0.8, mixing="row"), ROW, (1, 0)),
    Case("DGDClip", dg.DGDClip(0.05, 1.0), DOUBLY, (1, 0)),
    Case("DGDClip-row", dg.DGDClip(0.05, 1.0, mixing="row"), ROW, (1, 0)),
    Case("CDSGDPolyak", dg.CDSGDPolyak(0.02, 0.3), DOUBLY, (1, 0)),
    Case("CDSGDPolyak-row", dg.CDSGDPolyak(0.02, 0.3, mixing="row"), ROW, (1, 0)),
    Case("CDSGDNesterov", dg.CDSGDNesterov(0.02, 0.3), DOUBLY, (1, 0)),
    Case("CDSGDNesterov-row", dg.CDSGDNesterov(0.02, 0.3, mixing="row"), ROW, (1, 0)),
    Case("DAMSGrad", dg.DAMSGrad(0.01, epsilon=0.1), DOUBLY, (2, 0)),
    Case("DAMSGrad-undelayed", dg.DAMSGrad(0.01, delayed=False), DOUBLY, (2, 0)),
    Case("DAMSGrad-row", dg.DAMSGrad(0.01, epsilon=0.1, mixing="row"), ROW, (2, 0)),
    Case("DAdaGrad", dg.DAdaGrad(0.01, epsilon=0.1), DOUBLY, (2, 0)),
    Case("DAdaGrad-undelayed", dg.DAdaGrad(0.01, delayed=False), DOUBLY, (2, 0)),
    Case("DAdaGrad-row", dg.DAdaGrad(0.01, epsilon=0.1, mixing="row"), ROW, (2, 0)),
    Case("DNSGD", dg.DNSGD(0.05), DOUBLY, (2, 0), 2),
    Case("DNSGD-chebyshev", dg.DNSGD(0.05, gossip_rounds=3, chebyshev=0.2), DOUBLY, (6, 0), 6),
    Case("DNSGD-row", dg.DNSGD(0.05, mixing="row"), ROW, (2, 0), 2),
    Case("GTNSGDm", dg.GTNSGDm(0.05, 0.8), DOUBLY, (2, 0), 2),
    Case("GTNSGDm-row", dg.GTNSGDm(0.05, 0.8, mixing="row"), ROW, (2, 0), 2),
    Case("DeMuon", dg.DeMuon(0.05, 0.8), DOUBLY, (2, 0), 2),
    Case("DeMuon-row", dg.DeMuon(0.05, 0.8, mixing="row"), ROW, (2, 0), 2),
    Case("DiLoCo", dg.DiLoCo(0.05, 3, momentum=0.5), DOUBLY, (1, 0)),
    Case("DiLoCo-row", dg.DiLoCo(0.05, 3, momentum=0.5, mixing="row"), ROW, (1, 0)),
    Case("NoLoCo", dg.NoLoCo(0.05, 3), DOUBLY, (1, 0)),
    Case("NoLoCo-row", dg.NoLoCo(0.05, 3, mixing="row"), ROW, (1, 0)),
    Case("JiangClip", dg.JiangClip(0.05, 0.5), DOUBLY | MEAN, (1, 0)),
    Case("JiangClip-row", dg.JiangClip(0.05, 0.5, mixing="row"), ROW | MEAN, (1, 0)),
    Case("GD", dg.GD(0.05), MEAN, (0, 0)),
    Case("ClippedGD", dg.ClippedGD(0.05, 0.5), MEAN, (0, 0)),
    Case("NSGDm", dg.NSGDm(0.05, 0.8), MEAN, (0, 0)),
    Case("Adam", dg.Adam(0.05), MEAN, (0, 0)),
)
LABELS = [case.label for case in CASES]

# Tracking, push-sum, one matrix, second moments, the true average: what XLA compiles in the gate.
KINDS = ("CGT", "PushDIGing", "DGD", "DAMSGrad", "GD")


def of_each_kind(cases: Iterable[Case], *also: str) -> list[Any]:
    """Return one case of each kind, and those named, for the gate, and the others for `make slow`."""
    import pytest  # agents, which import this module too, do without

    return [
        pytest.param(case, id=case.label, marks=[] if case.label in (*KINDS, *also) else [pytest.mark.slow])
        for case in cases
    ]
