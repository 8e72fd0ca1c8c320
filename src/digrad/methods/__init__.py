"""Methods: one per file, mathematics only. ``METHODS`` is the table of all of them."""

from digrad.methods.ab import AB
from digrad.methods.adam import Adam
from digrad.methods.addopt import ADDOPT
from digrad.methods.aug_push_pull import AugPushPull
from digrad.methods.cdsgd_nesterov import CDSGDNesterov
from digrad.methods.cdsgd_polyak import CDSGDPolyak
from digrad.methods.cgt import CGT, scaled_thresholds
from digrad.methods.clipped_gd import ClippedGD
from digrad.methods.dadagrad import DAdaGrad
from digrad.methods.damsgrad import DAMSGrad
from digrad.methods.demuon import DeMuon
from digrad.methods.dgd import CDSGD, DGD
from digrad.methods.dgd_atc import DGDATC
from digrad.methods.dgd_clip import DGDClip
from digrad.methods.diloco import DiLoCo
from digrad.methods.dnsgd import DNSGD, chebyshev_momentum
from digrad.methods.dsgt import DSGT
from digrad.methods.frost import FROST
from digrad.methods.gd import GD
from digrad.methods.gt_nsgdm import GTNSGDm
from digrad.methods.jiang_clip import JiangClip
from digrad.methods.momentum_tracking import MomentumTracking
from digrad.methods.noloco import NoLoCo
from digrad.methods.normalized_ab import NormalizedAB
from digrad.methods.nsgdm import NSGDm
from digrad.methods.push_diging import PushDIGing
from digrad.methods.push_pull import PushPull
from digrad.methods.push_saga import PushSAGA
from digrad.methods.qg_dsgdm import QGDSGDm
from digrad.methods.references import BIBTEX
from digrad.methods.sgp import SGP
from digrad.methods.soft_cgt import SoftCGT
from digrad.methods.sonata import SONATA
from digrad.methods.subgradient_push import SubgradientPush
from digrad.methods.tracking import Tracking

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
        PushSAGA,
        ADDOPT,
        SONATA,
        SGP,
        SubgradientPush,
        DSGT,
        MomentumTracking,
        DGD,
        DGDATC,
        QGDSGDm,
        DGDClip,
        CDSGDPolyak,
        CDSGDNesterov,
        DAMSGrad,
        DAdaGrad,
        DNSGD,
        GTNSGDm,
        DeMuon,
        JiangClip,
        DiLoCo,
        NoLoCo,
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
    "DeMuon",
    "DiLoCo",
    "GTNSGDm",
    "JiangClip",
    "MomentumTracking",
    "NSGDm",
    "NoLoCo",
    "NormalizedAB",
    "PushDIGing",
    "PushPull",
    "PushSAGA",
    "QGDSGDm",
    "SoftCGT",
    "SubgradientPush",
    "Tracking",
    "chebyshev_momentum",
    "scaled_thresholds",
]
