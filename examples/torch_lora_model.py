"""Train a small language model on the manual that comes with Python, letter by letter: the start of torch_lora.py.

python examples/torch_lora_model.py base.pt
"""

import importlib.util
import sys
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

CONTEXT, WIDTH = 64, 96


class Model(nn.Module):
    """A transformer that predicts every letter of a text from those before it."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.letters, self.head = nn.Embedding(128, WIDTH), nn.Linear(WIDTH, 128)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.TransformerEncoder(block, 3, nn.LayerNorm(WIDTH), enable_nested_tensor=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of the predictions for a batch of windows."""
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        x = self.blocks(self.letters(text[:, :-1]) + self.places.weight, mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), text[:, 1:].flatten())


class LoRA(nn.Module):
    """A change of low rank of a frozen weight; zero at first."""

    def __init__(self, weight: torch.Tensor, rank: int = 8) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(rank, weight.shape[1]) / weight.shape[1] ** 0.5)
        self.b = nn.Parameter(torch.zeros(weight.shape[0], rank))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the changed weight."""
        return weight + self.b @ self.a


def add_lora(model: Model) -> None:
    model.requires_grad_(False)
    for name, weight in list(model.blocks.named_parameters()):
        if weight.ndim == 2:
            module = model.blocks.get_submodule(name.rpartition(".")[0])
            register_parametrization(module, name.rpartition(".")[2], LoRA(weight))


def source_code(package: str) -> torch.Tensor:
    folder = Path(str(importlib.util.find_spec(package).origin)).parent  # pyright: ignore
    return letters("".join(file.read_text() for file in sorted(folder.glob("*.py"))))


def letters(text: str) -> torch.Tensor:
    return torch.tensor(list(text.encode("ascii", "replace")))


def windows(text: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    first = torch.randint(len(text) - CONTEXT, (count, 1), generator=torch.Generator().manual_seed(seed))
    return text[first + torch.arange(CONTEXT + 1)]


if __name__ == "__main__":
    torch.manual_seed(0)
    model, manual = Model(), letters("".join(topics.values()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for k in range(int([*sys.argv, 500][2])):
        optimizer.zero_grad()
        model(windows(manual, 16, k)).backward()
        optimizer.step()
    torch.save(model.state_dict(), sys.argv[1])
