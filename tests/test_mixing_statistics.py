"""p is Dirichlet(1, ..., 1), independent wherever it should be.

The numpy reference is tested: the backends equal it bit by bit. Seeds are
fixed, so the outcome does not vary; thresholds leave p-values of 1e-4.
"""

import numpy as np
import pytest
from scipy import stats

from keras_mk.mixing import reference

SIZE = 1 << 20
THRESHOLD = 1e-4


def bits(seed, counter, shape=(SIZE,)):
    return reference.random_bits([seed, counter], shape)


def uniform(words):
    return (words.astype("float64") + 0.5) / 2**32


def correlation_p_value(x, y):
    return stats.pearsonr(x, y).pvalue


@pytest.mark.parametrize("expansion", [2, 3, 4, 8])
@pytest.mark.parametrize("seed", [0, 1, 123_456_789])
def test_marginals_are_beta(expansion, seed):
    p = reference.mixing_weights([seed, 3], expansion, (SIZE,), "float64")
    for marginal in p:
        # The 16-bit grid is dithered to a continuous variable.
        noise = np.random.default_rng(0).uniform(-0.5, 0.5, SIZE) / 2**16
        dithered = np.abs(marginal + noise)
        test = stats.kstest(dithered, stats.beta(1, expansion - 1).cdf)
        assert test.pvalue > THRESHOLD


@pytest.mark.parametrize("expansion", [3, 4, 8])
def test_copies_correlate_as_the_simplex_demands(expansion):
    p = np.stack(reference.mixing_weights([5, 0], expansion, (SIZE,)))
    correlation = np.corrcoef(p)
    off_diagonal = correlation[~np.eye(expansion, dtype=bool)]
    spread = 5 / np.sqrt(SIZE)
    np.testing.assert_allclose(
        off_diagonal, -1 / (expansion - 1), rtol=0, atol=spread
    )


@pytest.mark.parametrize("seed", [0, 1, 7, 2**31 - 1])
@pytest.mark.parametrize("shift", [0, 8, 16, 24])
def test_bytes_are_uniform(seed, shift):
    counts = np.bincount((bits(seed, 0) >> shift) & 0xFF, minlength=256)
    assert stats.chisquare(counts).pvalue > THRESHOLD


def test_each_bit_is_fair():
    words = bits(3, 1)
    for bit in range(32):
        ones = int(((words >> bit) & 1).sum())
        assert stats.binomtest(ones, SIZE).pvalue > THRESHOLD


def test_halves_are_independent():
    words = bits(4, 0)
    cells = ((words >> 12) & 0xF) * 16 + (words >> 28)
    assert stats.chisquare(np.bincount(cells)).pvalue > THRESHOLD
    assert correlation_p_value(words & 0xFFFF, words >> 16) > THRESHOLD


@pytest.mark.parametrize("lag", [1, 2, 3, 64, 400, 4096])
def test_neighbouring_elements_are_independent(lag):
    u = uniform(bits(5, 0))
    assert correlation_p_value(u[:-lag], u[lag:]) > THRESHOLD
    cells = (u[:-lag] * 16).astype(int) * 16 + (u[lag:] * 16).astype(int)
    assert stats.chisquare(np.bincount(cells)).pvalue > THRESHOLD


@pytest.mark.parametrize("lag", [1, 2, 16])
def test_steps_are_independent(lag):
    first, second = uniform(bits(6, 10)), uniform(bits(6, 10 + lag))
    assert correlation_p_value(first, second) > THRESHOLD
    for shift in (-1, 1):
        moved = np.roll(second, shift)
        assert correlation_p_value(first, moved) > THRESHOLD


def test_one_weight_over_the_steps():
    """What a single weight sees while it is trained."""
    steps = 1 << 14
    words = np.stack([bits(8, step, (4,)) for step in range(steps)])
    for element in words.T:
        counts = np.bincount(element >> 24, minlength=256)
        assert stats.chisquare(counts).pvalue > THRESHOLD
        u = uniform(element)
        assert correlation_p_value(u[:-1], u[1:]) > THRESHOLD
        assert stats.kstest(u, "uniform").pvalue > THRESHOLD


@pytest.mark.parametrize("difference", [1, 2, 256])
def test_layers_with_near_seeds_are_independent(difference):
    first, second = uniform(bits(9, 0)), uniform(bits(9 + difference, 0))
    for shift in (-1, 0, 1):
        moved = np.roll(second, shift)
        assert correlation_p_value(first, moved) > THRESHOLD
    later = uniform(bits(9, difference))
    assert correlation_p_value(second, later) > THRESHOLD


def test_words_of_an_element_are_independent():
    words = [
        uniform(reference.random_bits([10, 0], (SIZE,), word, 4))
        for word in range(4)
    ]
    for i in range(4):
        for j in range(i):
            assert correlation_p_value(words[i], words[j]) > THRESHOLD
            lagged = correlation_p_value(words[i][1:], words[j][:-1])
            assert lagged > THRESHOLD
