"""scikit-learn's bundled images of handwritten digits, split once and for all. Without torch: traffic uses them too."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SPLIT_SEED = 0  # held-out images stay the same, whatever the training seed

_HELD_OUT = 0.3

Images = tuple[np.ndarray, np.ndarray]


def split() -> tuple[Images, Images]:
    """(training, held out), each as (pixels float32 (n, 64) from 0 to 16, labels int64 (n,))."""
    data = load_digits()
    pixels, labels = data.data.astype(np.float32), data.target.astype(np.int64)
    train_x, test_x, train_y, test_y = train_test_split(
        pixels, labels, test_size=_HELD_OUT, random_state=SPLIT_SEED, stratify=labels
    )
    return (train_x, train_y), (test_x, test_y)


def held_out() -> Images:
    """The images that no training has seen, with their true labels."""
    return split()[1]
