"""Draw the pictures of the examples: `python docs/gallery.py [NAME ...]` writes docs/images/example-NAME.png."""

import runpy
import sys
from pathlib import Path

import matplotlib

HERE = Path(__file__).parent
DRAWN = ("compare_methods", "own_loss", "own_method", "changing_network", "short_messages", "same_batch")


def main() -> None:
    """Run the examples that draw."""
    matplotlib.use("Agg")
    matplotlib.rcParams["savefig.dpi"] = 110
    for name in sys.argv[1:] or DRAWN:
        sys.argv = [name, str(HERE / "images" / f"example-{name}.png")]
        runpy.run_path(str(HERE.parent / "examples" / f"{name}.py"), run_name="__main__")


if __name__ == "__main__":
    main()
