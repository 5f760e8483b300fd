"""Random networks keep every state in whatever makes another of them.

Many more of them: `KERAS_MK_EXAMPLES=500 pytest tests/test_every_state...`,
or `python tests/soak.py`, which also trains them.
"""

import os
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck
from hypothesis import Phase
from hypothesis import given
from hypothesis import note
from hypothesis import settings
from hypothesis import strategies

from tests.soaking import kept
from tests.soaking import specs
from tests.soaking.wrong import Refused

EXAMPLES = int(os.environ.get("KERAS_MK_EXAMPLES", "5"))


@strategies.composite
def networks(draw):
    return specs.network(specs.FromHypothesis(draw))


def checked(examples):
    """The same networks at each run; made smaller only where it is worth it."""
    phases = [Phase.explicit, Phase.generate]
    if examples > 10:
        phases.append(Phase.shrink)
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )


def nothing_is_lost(spec, export=False):
    with TemporaryDirectory() as folder:
        try:
            wrongs = kept.check(spec, folder, export)
        except kept.PlainFails:
            return
        except Refused as refused:
            note(f"refused: {refused}")
            return
    assert not wrongs, "\n".join([str(spec), *map(str, wrongs)])


@checked(EXAMPLES)
@given(spec=networks())
def test_every_state_is_kept(spec):
    nothing_is_lost(spec)


@pytest.mark.slow
@checked(10 * EXAMPLES)
@given(spec=networks())
def test_every_state_is_kept_of_many(spec):
    nothing_is_lost(spec, export=True)
