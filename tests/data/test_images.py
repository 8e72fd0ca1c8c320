import numpy as np
import pytest

from digrad.data import ImageSet, augmented, normalized
from digrad.errors import DataError
from image_problems import records


def images(count=8):
    return ImageSet("generated", [records(count, 0)]).take(np.arange(count))


def naive(image, down, right, is_mirrored):
    """Return the crop at (down, right) of the image in a frame of four black pixels."""
    padded = np.zeros((3, 40, 40), np.uint8)
    padded[:, 4:36, 4:36] = image
    crop = padded[:, down : down + 32, right : right + 32]
    return crop[:, :, ::-1] if is_mirrored else crop


def test_augmented_images_are_crops_of_the_padded_ones_some_mirrored():
    originals = images(64)
    shown = augmented(originals, seed=3, agent=1, step=5)
    found = set()
    for original, image in zip(originals, shown, strict=True):
        matches = [
            (down, right, flip)
            for down in range(9) for right in range(9) for flip in (False, True)
            if np.array_equal(naive(original, down, right, flip), image)
        ]  # fmt: skip
        assert len(matches) == 1
        found.update(matches)
    assert {flip for *_, flip in found} == {False, True}
    assert len({down for down, *_ in found}) == len({right for _, right, _ in found}) == 9


def test_augmented_is_a_pure_function_of_seed_agent_and_step():
    first = augmented(images(), seed=0, agent=2, step=9)
    np.testing.assert_array_equal(augmented(images(), seed=0, agent=2, step=9), first)
    for other in ({"seed": 1}, {"agent": 3}, {"step": 10}):
        assert (augmented(images(), **{"seed": 0, "agent": 2, "step": 9, **other}) != first).any()


def test_augmented_leaves_its_argument_alone():
    originals = images()
    before = originals.copy()
    augmented(originals, seed=0, agent=0, step=0)
    np.testing.assert_array_equal(originals, before)


def test_normalized_subtracts_the_mean_and_divides_by_the_deviation():
    grey = np.full((1, 3, 32, 32), 128, np.uint8)
    expected = (128 / 255 - np.array([0.4914, 0.482158, 0.446531])) / np.array([0.247032, 0.243485, 0.261588])
    values = normalized(grey)
    assert values.dtype == np.float32
    np.testing.assert_allclose(values[0, :, 0, 0], expected, rtol=1e-5)


def test_image_set_takes_from_several_files_in_the_order_asked_for():
    parts = [records(3, 0), records(4, 1)]
    together = np.concatenate(parts)
    chosen = np.array([6, 0, 3, 2, 3])
    taken = ImageSet("two files", parts).take(chosen)
    np.testing.assert_array_equal(taken.reshape(5, -1), together[chosen, 1:])


def test_image_set_refuses_records_of_another_length():
    with pytest.raises(DataError, match=r"needs records \[m, 3073\]"):
        ImageSet("wrong", [np.zeros((2, 10), np.uint8)])
