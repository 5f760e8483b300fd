import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import pytest


@pytest.fixture(autouse=True)
def _fixed_seed():
    keras.utils.set_random_seed(1)


def pytest_report_header():
    return f"keras {keras.__version__}, backend: {keras.config.backend()}"
