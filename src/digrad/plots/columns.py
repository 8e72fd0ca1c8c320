"""Names of the columns of traces and of sweeps, for figures and pages."""

from typing import NamedTuple


class Column(NamedTuple):
    """Names of a column.

    Args:
        title: Title of a figure.
        label: Label of its axis, with formulas.
        what: The same in words; ``{average}`` stands for the average of the agents.
        is_share: Whether it is between 0 and 1, so that a logarithmic axis makes no sense.
    """

    title: str
    label: str
    what: str = ""
    is_share: bool = False


# In the order in which a page shows them.
_COLUMNS = {
    "loss": Column("Global loss", r"loss $f(\bar{x}_k)$", "F at the {average} of the agents"),
    "excess_loss": Column(
        "Excess loss", r"$f(\bar{x}_k) - f^\star$", "F − F* at the {average} of the agents"
    ),
    "grad_norm": Column("Gradient norm", r"$\|\nabla f(\bar{x}_k)\|$", "‖∇F‖ at the {average} of the agents"),
    "consensus_error": Column(
        "Consensus error",
        r"$\|x_k - 1\bar{x}_k^\top\|_F/\sqrt{n}$",
        "how far the agents are from their {average}",
    ),
    "tracking_error": Column("Tracking error", "tracking error", "how far the trackers y are from agreeing"),
    "fraction_clipped": Column(
        "Agents that clip", "share of agents", "share of agents whose direction was clipped", is_share=True
    ),
    "mass_error": Column(
        "Tracking-invariant residual",
        "error of the tracker sum",
        "sum of trackers and messages in transit, minus the sum of gradients",
    ),
    "in_transit": Column(
        "Undelivered mass", "norm of the undelivered mass", "norm of what is not delivered yet"
    ),
    "delivered": Column("Delivered", "share of packets", "share of messages that arrived", is_share=True),
    "overtaken": Column(
        "Overtaken",
        "share of packets delivered",
        "share of delivered packets that arrived after a newer one, and were ignored",
        is_share=True,
    ),
    "epsilon": Column("Privacy spent", r"$\varepsilon$", "the epsilon of differential privacy of each agent"),
    "min_weight": Column("Smallest weight", "weight", "the smallest push-sum weight"),
    "train_accuracy": Column(
        "Training accuracy", r"accuracy of $\bar{x}_k$", "of the {average} of the models", is_share=True
    ),
    "test_accuracy": Column(
        "Test accuracy", r"accuracy of $\bar{x}_k$", "of the {average} of the models", is_share=True
    ),
    "batch_loss": Column("Mini-batch loss", "mean over agents and steps"),
    "tracker_norm": Column("Largest tracker", r"largest $\|y_{i,k}\|$"),
    "bytes_sent": Column("Traffic", "bytes sent by all agents"),
    # Of sweeps.
    "final_loss": Column("Final loss", "loss at the last iteration"),
    "final_grad_norm": Column("Final gradient norm", "gradient norm at the last iteration"),
    "best_loss": Column("Best loss", "smallest loss of the run"),
    "best_grad_norm": Column("Best gradient norm", "smallest gradient norm of the run"),
    "held_out_loss": Column("Held-out loss", "loss on held-out samples"),
    "iterations_to_target": Column("Speed", "iterations to the target"),
    "bytes_to_target": Column("Traffic", "bytes to the target"),
}
ORDER = tuple(_COLUMNS)


def column_of(name: str) -> Column:
    """Return the names of a column; of one that is not known, its own."""
    words = name.replace("_", " ")
    return _COLUMNS.get(name, Column(words.capitalize(), words))
