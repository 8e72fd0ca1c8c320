"""One agent training an MLP and a CNN for a few steps; its state goes to a file."""

import sys

import torch
from safetensors.torch import save_file

from digrad.graphs import example5
from digrad.torch import DecentralizedOptimizer, ProcessNetwork
from method_cases import CASES
from torch_models import network_loss, network_model

LABELS = ("CGT", "CGT-agents", "AB", "PushDIGing", "SGP", "FROST", "DSGT", "DAMSGrad", "CDSGDNesterov")
METHODS = {case.label: case.method for case in CASES if case.label in LABELS}
STEPS = 20


def settings() -> list[tuple[str, str, torch.dtype, torch.dtype | None]]:
    """Return ``(method, model, dtype, message dtype)``: all models with CGT, the other methods on one."""
    rows = [
        ("CGT", model, dtype, None) for model in ("mlp", "cnn") for dtype in (torch.float32, torch.float64)
    ]
    rows += [(label, "mlp", torch.float32, None) for label in METHODS if label != "CGT"]
    return [
        *rows,
        ("CGT", "mlp", torch.float32, torch.bfloat16),
        ("SGP", "mlp", torch.float32, torch.float16),
    ]


def main(out: str) -> None:
    network, results = ProcessNetwork(example5()), {}
    for row, (label, name, dtype, message_dtype) in enumerate(settings()):
        model = network_model(name, dtype)
        optimizer = DecentralizedOptimizer(
            model.parameters(), METHODS[label], network, weight_decay=1e-3, message_dtype=message_dtype
        )
        for k in range(STEPS):
            optimizer.zero_grad()
            network_loss(model, network.agent, k, dtype).backward()
            optimizer.step()
        optimizer.close()
        results |= {f"{row}/{key}": v.contiguous() for key, v in optimizer.state_fields._asdict().items()}
        results |= {f"{row}/buffer/{key}": v for key, v in model.named_buffers()}
    save_file(
        {key: value.clone() for key, value in results.items()}, f"{out}/agent{network.agent}.safetensors"
    )
    network.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
