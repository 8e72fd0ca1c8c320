"""Small specifications that several tests run."""

from digrad.specs import Spec, parse_spec

TEXT = """
name = "tiny"
steps = {steps}
seeds = {seeds}
start = [10.0, 10.0]
record_every = 5
checkpoint_every = 10
graph = {{kind = "example5"}}
problem = {{kind = "example_quartic"}}
methods.CGT = {{step_size = 0.05, threshold = 5.0}}
methods.AB = {{step_size = 0.05}}
methods.DGDClip = {{step_size = 0.05, threshold = 5.0, mixing = "row"}}
"""


def tiny(*, steps: int = 50, seeds: int = 1) -> Spec:
    """Three methods on the quartic example; AB diverges."""
    return parse_spec(TEXT.format(steps=steps, seeds=seeds), "tiny.toml")


SAMPLED = """
name = "sampled"
steps = 400
batch_size = 4
seeds = {seeds}
start = "normal"
record_every = 10
checkpoint_every = 40
graph = {{kind = "example5"}}
problem = {{kind = "logistic", data = "breast_cancer", partition = "sorted", reg_weight = 1e-3, reg_power = 4}}
methods.CGT = {{step_size = 0.02, threshold = 1.0}}
methods.DGDClip = {{step_size = 0.02, threshold = 1.0, mixing = "row"}}
"""


def sampled(*, seeds: int = 1) -> Spec:
    """Mini-batches on real data, with several checkpoints."""
    return parse_spec(SAMPLED.format(seeds=seeds), "sampled.toml")


IMAGES = """
name = "images"
engine = "torch"
steps = {steps}
batch_size = 4
seeds = {seeds}
start = "model"
dtype = "float32"
sampling = "epoch"
record_every = 2
checkpoint_every = 1
graph = {{kind = "example5"}}
problem = {{kind = "images", folder = "{folder}", norm = "group", evaluate = 10, evaluate_last = 10}}
methods.CGT = {{step_size = 0.05, threshold = 10.0}}
methods.AB = {{step_size = {ab_step_size}}}
"""


def images(folder: object, *, steps: int = 4, seeds: int = 1, ab_step_size: object = 0.05) -> Spec:
    """Two methods on generated images in ``folder``, trained by torch."""
    text = IMAGES.format(folder=folder, steps=steps, seeds=seeds, ab_step_size=ab_step_size)
    return parse_spec(text, "images.toml")
