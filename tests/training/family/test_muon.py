"""Muon's orthogonalisation, and that batching matrices of one shape changes nothing."""

import pytest
import torch

from tandem.training.family.muon import Muon, orthogonalise


@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 24, 64), (2, 64, 24)])
def test_singular_values_become_about_one(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(orthogonalise(matrices, steps=8))
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_directions_are_kept():
    x = torch.randn(16, 16, generator=torch.Generator().manual_seed(2))
    u, _, vh = torch.linalg.svd(x)
    inner = u.T @ orthogonalise(x) @ vh.T
    assert (inner - torch.diag(torch.diagonal(inner))).abs().max() < 1e-3


def test_scale_of_the_gradient_does_not_matter():
    x = torch.randn(8, 12, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(orthogonalise(x), orthogonalise(1000 * x), rtol=1e-4, atol=1e-4)


def test_a_batch_of_matrices_steps_like_single_ones():
    generator = torch.Generator().manual_seed(4)
    starts, gradients = (torch.randn(3, 8, 12, generator=generator) for _ in range(2))

    def stepped(together: bool) -> list[torch.Tensor]:
        parameters = [torch.nn.Parameter(start.clone()) for start in starts]
        groups = [parameters] if together else [[p] for p in parameters]
        for group in groups:
            optimiser = Muon(group, lr=0.1)
            for _ in range(3):
                for p in group:
                    index = next(i for i, q in enumerate(parameters) if q is p)
                    p.grad = gradients[index].clone()
                optimiser.step()
        return [p.detach() for p in parameters]

    for one, other in zip(stepped(True), stepped(False), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_it_finds_a_minimum():
    wanted = torch.randn(8, 8, generator=torch.Generator().manual_seed(5))
    weight = torch.nn.Parameter(torch.zeros(8, 8))
    optimiser = Muon([weight], lr=0.05, weight_decay=0.0)
    for step in range(300):
        optimiser.param_groups[0]["lr"] = 0.2 * (1 - step / 300)
        weight.grad = weight.detach() - wanted
        optimiser.step()
    assert (weight - wanted).square().mean() < 0.01
