import pytest
import torch

from digrad.errors import ArgumentError
from digrad.specs.images.models import MODELS, NORMS, build_model

PARAMETERS = {"resnet18": 11_173_962, "resnet20": 269_722, "small_cnn": 113_962}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_models_have_the_published_number_of_parameters(name, norm):
    assert (
        sum(parameter.numel() for parameter in build_model(name, norm=norm).parameters()) == PARAMETERS[name]
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("norm", NORMS)
def test_models_answer_ten_finite_numbers_per_image(name, norm):
    outputs = build_model(name, norm=norm)(torch.ones(2, 3, 32, 32))
    assert outputs.shape == (2, 10)
    assert bool(outputs.isfinite().all())


@pytest.mark.parametrize("norm", NORMS)
def test_models_keep_running_statistics_only_with_batch_norm(norm):
    has_buffers = any(True for _ in build_model("resnet20", norm=norm).buffers())
    assert has_buffers == (norm == "batch")


def test_models_start_from_their_seed_alone():
    first, second, other = (build_model("small_cnn", seed=seed) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_build_model_names_the_nearest_model():
    with pytest.raises(ArgumentError, match="Did you mean `resnet18`"):
        build_model("resnet_18")
