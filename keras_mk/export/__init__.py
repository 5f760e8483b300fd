"""Collapsed models for other runtimes."""

from keras_mk.export.export_collapsed import (
    export_collapsed as export_collapsed,
)
from keras_mk.export.report import ExportReport as ExportReport
