"""``kind: Skill``: instructions and files for one kind of task, which an agent loads when it needs them."""

from typing import Literal, Self

from pydantic import Field, model_validator

from .base import FieldError, JsonModel, Text
from .manifest import Manifest

LOAD_SKILL = "load_skill"
"""The tool by which an agent reads its skills."""

MAX_DESCRIPTION = 1_024
"""Characters of a description, which is part of every model call of its agents (Agent Skills: front matter)."""


class SkillSpec(JsonModel):
    """The ``spec`` of a Skill: a folder, or its content."""

    folder: Text | None = Field(None, description="the folder with a SKILL.md, from the manifest's folder")
    description: Text | None = Field(
        None,
        max_length=MAX_DESCRIPTION,
        description="its purpose, which agents read before they load it",
    )
    instructions: Text | None = Field(None, description="the text that an agent reads when it loads the skill")
    files: dict[Text, str] = Field({}, description="more texts that an agent can load, by path")

    @model_validator(mode="after")
    def _folder_or_content(self) -> Self:
        content = [name for name in ("description", "instructions", "files") if getattr(self, name)]
        if self.folder and content:
            raise FieldError((content[0],), "can't be combined with folder: keep one of them")
        if not self.folder and not (self.description and self.instructions):
            raise FieldError(("instructions" if self.description else "description",), "is missing, or write folder")
        return self


class Skill(Manifest):
    """Instructions and files for one kind of task."""

    kind: Literal["Skill"] = "Skill"
    spec: SkillSpec = Field(description="the skill's folder or content")
