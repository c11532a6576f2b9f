"""Which of several shapes was meant? A field that may be a text or a mapping is judged by what it looks like."""

from pydantic import Discriminator, Tag

from .base import JsonModel

SHAPE = "of:"
"""With this begin the steps of a place in an error that name no field, but the shape that was looked for there."""

SINGLE, MAPPING, LIST = (Tag(f"{SHAPE}{shape}") for shape in ("single", "mapping", "list"))


def _shape(value: object) -> str:
    shape = MAPPING if isinstance(value, dict | JsonModel) else LIST if isinstance(value, list | tuple) else SINGLE
    return shape.tag


BY_SHAPE = Discriminator(_shape)
"""Tells the members of a union apart by their shape, so that an error is about the one that was meant."""
