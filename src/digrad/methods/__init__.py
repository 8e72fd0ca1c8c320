"""Methods: one per file, mathematics only. ``METHODS`` is the table of all of them."""

from digrad.methods.ab import AB as AB
from digrad.methods.adam import Adam as Adam
from digrad.methods.addopt import ADDOPT as ADDOPT
from digrad.methods.aug_push_pull import AugPushPull as AugPushPull
from digrad.methods.cdsgd_nesterov import CDSGDNesterov as CDSGDNesterov
from digrad.methods.cdsgd_polyak import CDSGDPolyak as CDSGDPolyak
from digrad.methods.cgt import CGT as CGT
from digrad.methods.cgt import scaled_thresholds as scaled_thresholds
from digrad.methods.clipped_gd import ClippedGD as ClippedGD
from digrad.methods.dadagrad import DAdaGrad as DAdaGrad
from digrad.methods.damsgrad import DAMSGrad as DAMSGrad
from digrad.methods.demuon import DeMuon as DeMuon
from digrad.methods.dgd import CDSGD as CDSGD
from digrad.methods.dgd import DGD as DGD
from digrad.methods.dgd_atc import DGDATC as DGDATC
from digrad.methods.dgd_clip import DGDClip as DGDClip
from digrad.methods.diloco import DiLoCo as DiLoCo
from digrad.methods.dnsgd import DNSGD as DNSGD
from digrad.methods.dnsgd import chebyshev_momentum as chebyshev_momentum
from digrad.methods.dsgt import DSGT as DSGT
from digrad.methods.frost import FROST as FROST
from digrad.methods.gd import GD as GD
from digrad.methods.gt_nsgdm import GTNSGDm as GTNSGDm
from digrad.methods.jiang_clip import JiangClip as JiangClip
from digrad.methods.momentum_tracking import MomentumTracking as MomentumTracking
from digrad.methods.noloco import NoLoCo as NoLoCo
from digrad.methods.normalized_ab import NormalizedAB as NormalizedAB
from digrad.methods.nsgdm import NSGDm as NSGDm
from digrad.methods.push_diging import PushDIGing as PushDIGing
from digrad.methods.push_pull import PushPull as PushPull
from digrad.methods.push_saga import PushSAGA as PushSAGA
from digrad.methods.qg_dsgdm import QGDSGDm as QGDSGDm
from digrad.methods.references import BIBTEX as BIBTEX
from digrad.methods.sgp import SGP as SGP
from digrad.methods.soft_cgt import SoftCGT as SoftCGT
from digrad.methods.sonata import SONATA as SONATA
from digrad.methods.subgradient_push import SubgradientPush as SubgradientPush
from digrad.methods.tracking import Tracking as Tracking

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
