"""A penalty on the copies of a kernel, as large as on the plain kernel."""

from typing import Any

import keras


@keras.saving.register_keras_serializable(package="keras_mk")
class AveragedOverCopies(keras.regularizers.Regularizer):
    """A copy's share of the average of a penalty over the copies."""

    def __init__(self, regularizer: Any, expansion: int) -> None:
        self.regularizer = keras.regularizers.get(regularizer)
        self.expansion = expansion

    def __call__(self, x: Any) -> Any:
        return self.regularizer(x) / self.expansion

    def get_config(self) -> dict[str, Any]:
        regularizer = keras.regularizers.serialize(self.regularizer)
        return {"regularizer": regularizer, "expansion": self.expansion}
