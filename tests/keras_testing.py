"""The one place that takes something from Keras's own test code."""

from keras.src.testing import TestCase


class _Case(TestCase):
    def runTest(self):
        """Makes the case constructible outside of a test class."""


def run_layer_test(layer_class, **kwargs):
    _Case().run_layer_test(layer_class, **kwargs)
