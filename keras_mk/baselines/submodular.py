"""Choosing diverse neurons of high utility: the paper's subset selection.

    f(S) = alpha * sum of u(i) over S
         - beta * sum of s(i, j) over the pairs in S that are neighbours

with u(i) the norm of row i plus c, s the cosine similarity, and neighbours
those of a nearest-neighbour graph. f is monotone and submodular, so taking
the row that adds most, again and again, comes close to the best subset. (The
paper writes argmin for it; its text maximises, and so do we.)
"""

from typing import Any

import numpy as np

from keras_mk.validation import check_count
from keras_mk.validation import check_number


def similarities(rows: Any, neighbours: int = 10) -> Any:
    """Cosine similarity of each row to its nearest neighbours, else 0.

    A pair counts if either is among the nearest of the other. Rows that point
    away from each other are not similar, which is 0 and not less.

    Args:
        rows: Array of shape `(n, d)`.
        neighbours: How many nearest neighbours a row has: the paper's t.

    Returns:
        Symmetric array of shape `(n, n)` with zeros on its diagonal.
    """
    from sklearn.neighbors import NearestNeighbors

    rows = np.asarray(rows)
    neighbours = min(neighbours, len(rows) - 1)
    found = np.zeros((len(rows), len(rows)), "float32")
    if neighbours < 1:
        return found
    search = NearestNeighbors(
        n_neighbors=neighbours, metric="cosine", algorithm="brute"
    ).fit(rows)
    # Without arguments a row is not its own neighbour.
    distances, indices = search.kneighbors()
    at = np.arange(len(rows))[:, None]
    found[at, indices] = np.maximum(1 - distances, 0)
    return np.maximum(found, found.T)


def utilities(rows: Any, similarity: Any) -> Any:
    """`u(i) = |row i| + c`, with c the largest sum of a row's similarities."""
    return np.linalg.norm(rows, axis=1) + similarity.sum(axis=1).max()


def objective(
    subset: Any,
    utility: Any,
    similarity: Any,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> float:
    """The paper's f(S), each pair counted once."""
    subset = np.asarray(subset, dtype="int64")
    pairs = similarity[np.ix_(subset, subset)].sum() / 2
    return float(alpha * utility[subset].sum() - beta * pairs)


def greedy_subset(
    utility: Any,
    similarity: Any,
    size: int,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Any:
    """Indices of the rows that greedy maximisation takes, in its order.

    >>> import numpy as np
    >>> utility = np.array([3.0, 3.0, 2.0])
    >>> similarity = np.zeros((3, 3))
    >>> similarity[0, 1] = similarity[1, 0] = 2
    >>> greedy_subset(utility, similarity, size=2).tolist()
    [0, 2]
    """
    if not 0 <= size <= len(utility):
        raise ValueError(
            f"`size` must be from 0 to the number of rows, {len(utility)}. "
            f"Received: size={size}"
        )
    gain = alpha * np.asarray(utility, "float64")
    taken = []
    for _ in range(size):
        best = int(np.argmax(gain))
        taken.append(best)
        gain = gain - beta * similarity[best]
        gain[best] = -np.inf
    return np.array(taken)


def select(
    rows: Any,
    size: int,
    neighbours: int = 10,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Any:
    """The subset of rows that the paper's procedure selects."""
    check_options(neighbours, alpha, beta)
    similarity = similarities(rows, neighbours)
    utility = utilities(rows, similarity)
    return greedy_subset(utility, similarity, size, alpha, beta)


def check_options(
    neighbours: int = 10, alpha: float = 1.0, beta: float = 1.0
) -> None:
    """Raises unless they are options of `select`."""
    check_count("neighbours", neighbours)
    check_number("alpha", alpha, at_least=0)
    check_number("beta", beta, at_least=0)
