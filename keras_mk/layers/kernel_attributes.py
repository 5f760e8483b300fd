"""The attributes by which a majority-kernel layer shows a kernel."""

from typing import Any


def copies(name: str) -> property:
    def get(self: Any) -> tuple[Any, ...]:
        if not self.built:
            raise AttributeError(
                f"You must build the layer before accessing `{name}s`."
            )
        copies: tuple[Any, ...] = getattr(self, f"_{name}_copies")
        return copies

    return property(get, doc=f"The copies of `{name}`: a tuple of variables.")


def effective(name: str, attribute: str) -> property:
    def get(self: Any) -> Any:
        if not self.built:
            raise AttributeError(
                f"You must build the layer before accessing `{name}`."
            )
        if name in self._in_call.kernels:
            return self._in_call.kernels[name]
        return self._kernel_read_outside(name)

    def keep(self: Any, value: Any) -> None:
        """What `build` assigns, under the name that the plain class reads."""
        vars(self)[attribute] = value

    return property(get, keep, doc=f"The average of the copies: `{name}s`.")
