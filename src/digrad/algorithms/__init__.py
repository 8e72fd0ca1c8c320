"""Methods: one per file, mathematics only. ``METHODS`` is the table of all of them."""

from digrad.algorithms.ab import AB
from digrad.algorithms.adam import Adam
from digrad.algorithms.addopt import ADDOPT
from digrad.algorithms.aug_push_pull import AugPushPull
from digrad.algorithms.cdsgd_nesterov import CDSGDNesterov
from digrad.algorithms.cdsgd_polyak import CDSGDPolyak
from digrad.algorithms.cgt import CGT, scaled_thresholds
from digrad.algorithms.clipped_gd import ClippedGD
from digrad.algorithms.dadagrad import DAdaGrad
from digrad.algorithms.damsgrad import DAMSGrad
from digrad.algorithms.dgd import CDSGD, DGD
from digrad.algorithms.dgd_atc import DGDATC
from digrad.algorithms.dgd_clip import DGDClip
from digrad.algorithms.dnsgd import DNSGD, chebyshev_momentum
from digrad.algorithms.dsgt import DSGT
from digrad.algorithms.frost import FROST
from digrad.algorithms.gd import GD
from digrad.algorithms.gt_nsgdm import GTNSGDm
from digrad.algorithms.jiang_clip import JiangClip
from digrad.algorithms.normalized_ab import NormalizedAB
from digrad.algorithms.nsgdm import NSGDm
from digrad.algorithms.push_diging import PushDIGing
from digrad.algorithms.push_pull import PushPull
from digrad.algorithms.references import BIBTEX
from digrad.algorithms.sgp import SGP
from digrad.algorithms.soft_cgt import SoftCGT
from digrad.algorithms.sonata import SONATA
from digrad.algorithms.subgradient_push import SubgradientPush

METHODS: dict[str, type] = {
    method.__name__: method
    for method in (
        CGT,
        SoftCGT,
        AB,
        PushPull,
        AugPushPull,
        NormalizedAB,
        FROST,
        PushDIGing,
        ADDOPT,
        SONATA,
        SGP,
        SubgradientPush,
        DSGT,
        DGD,
        DGDATC,
        DGDClip,
        CDSGDPolyak,
        CDSGDNesterov,
        DAMSGrad,
        DAdaGrad,
        DNSGD,
        GTNSGDm,
        JiangClip,
        GD,
        ClippedGD,
        NSGDm,
        Adam,
    )
}
METHODS["CDSGD"] = CDSGD  # DGD under the paper's name

__all__ = [
    "AB",
    "ADDOPT",
    "BIBTEX",
    "CDSGD",
    "CGT",
    "DGD",
    "DGDATC",
    "DNSGD",
    "DSGT",
    "FROST",
    "GD",
    "METHODS",
    "SGP",
    "SONATA",
    "Adam",
    "AugPushPull",
    "CDSGDNesterov",
    "CDSGDPolyak",
    "ClippedGD",
    "DAMSGrad",
    "DAdaGrad",
    "DGDClip",
    "GTNSGDm",
    "JiangClip",
    "NSGDm",
    "NormalizedAB",
    "PushDIGing",
    "PushPull",
    "SoftCGT",
    "SubgradientPush",
    "chebyshev_momentum",
    "scaled_thresholds",
]
