import numpy as np
import pytest
import torch

import digrad as dg
from digrad.specs.images.problem import Evaluation
from digrad.specs.images.smoothness import curvature_along
from digrad.specs.images.training import Training, TrainingPlan
from image_problems import tiny_problem

NETWORK = dg.Network(dg.graphs.example5())
PLAN = TrainingPlan(steps=4, batch_size=4, record_every=100, evaluate=10, evaluate_last=10)
CGT = dg.CGT(step_size=0.05, threshold=10.0)


def hessian(function, x):
    return torch.autograd.functional.hessian(function, x)


def test_curvature_measures_at_the_points_asked_for():
    k, found = curvature_along(
        CGT, tiny_problem(norm="none"), NETWORK, PLAN, points=[0, 2, 4], images=4, rounds=1
    )
    assert k.tolist() == [0, 2, 4]
    assert found.grad_norms.shape == found.hessian_norms.shape == (3, 5)
    assert (found.hessian_norms_F > 0).all()
    assert (found.dissimilarity > 0).all()


def test_curvature_of_the_last_layer_is_that_of_its_hessian(monkeypatch):
    # Only the last bias is trained, so that the whole Hessian can be written down.
    def start(self, seed, scale=1.0):
        from digrad.specs.images.models import build_model

        model = build_model(self.model, norm=self.norm, seed=seed)
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.shape == (10,))
        return model

    problem = tiny_problem(norm="none")
    monkeypatch.setattr(type(problem), "start", start)
    _, found = curvature_along(CGT, problem, NETWORK, PLAN, points=[0], images=4, rounds=200)
    model = Training(CGT, problem, NETWORK, PLAN, "CGT").replicas.models[0]
    bias = next(parameter for parameter in model.parameters() if parameter.requires_grad)
    whole = torch.zeros(10, 10)
    for agent, part in enumerate(problem.partition.indices):
        images, labels = next(Evaluation(problem.images, problem.chosen[part[:4]]).batches())
        logits = (model(images) - bias).detach()
        one = hessian(
            lambda b, z=logits, y=labels: torch.nn.functional.cross_entropy(z + b, y), bias.detach()
        )
        whole += one / 5
        assert found.hessian_norms[0, agent] == pytest.approx(
            torch.linalg.matrix_norm(one, 2).item(), rel=1e-3
        )
    assert found.hessian_norms_F[0] == pytest.approx(torch.linalg.matrix_norm(whole, 2).item(), rel=1e-3)


def test_curvature_leaves_the_training_as_it_was():
    problem = tiny_problem(norm="batch")
    watched = {}
    _, measured = curvature_along(
        CGT, problem, NETWORK, PLAN, points=[1, 4], images=4, rounds=1, on_step=watched.__setitem__
    )
    assert [*watched] == [1, 2, 3, 4]
    _, again = curvature_along(CGT, problem, NETWORK, PLAN, points=[4], images=4, rounds=1)
    np.testing.assert_array_equal(measured.grad_norms_F[-1:], again.grad_norms_F)
    assert min(watched[4], again.lower_bound) == measured.lower_bound
