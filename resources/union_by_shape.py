"""Unions of a single value, a mapping and a list: the shape of the value selects the type, for better errors."""

from pydantic import Discriminator, Tag

from .base import JsonModel

SHAPE = "of:"
"""The prefix of steps in an error's path that name a shape and not a field."""

SINGLE, MAPPING, LIST = (Tag(f"{SHAPE}{shape}") for shape in ("single", "mapping", "list"))


def _shape(value: object) -> str:
    shape = MAPPING if isinstance(value, dict | JsonModel) else LIST if isinstance(value, list | tuple) else SINGLE
    return shape.tag


BY_SHAPE = Discriminator(_shape)
"""Selects the type of a union by shape, so that an error is about the type that was meant."""
