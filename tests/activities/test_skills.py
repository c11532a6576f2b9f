"""Tests of skills: read from their folders, named in the prompt of their agent, loaded by a tool, pinned with a run."""

from pathlib import Path

import pytest
from temporalio.client import Client

from baton.resources import skill as resources
from baton.resources.skill_folder import MAX_BYTES, MAX_FILE, MAX_FILES
from baton.starter.api import Agent, Skill
from tests.activities.test_custom_tools import env
from tests.harness.environment import Environment, Json, agent, call, line, manifest, team
from tests.harness.manifests import Writer

__all__ = ["env"]
FRONT = "---\nname: rules\ndescription: What is paid.\n---\n"


def rules(**spec: object) -> Json:
    return manifest("Skill", "rules", {"description": "What is paid.", "instructions": "Pay all.", **spec})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A skill's folder beside the manifests that are written."""
    made = tmp_path / "skills" / "rules"
    (made / "more").mkdir(parents=True)
    (made / "SKILL.md").write_text(f"{FRONT}Pay all.\r\nSee more/limits.md, ${{HOME}} and {{{{- x }}}}.\n")
    (made / "more" / "limits.md").write_text("Oslo: 190")
    return made


async def said_by(env: Environment, brought: list[Json], *says: object) -> list[str]:
    env.script(line("one", *says, "Done."))  # type: ignore[arg-type]
    turn = await env.turn_result(await env.start("agent", {"agent": "one", "input": "?", "resources": brought}))
    return [each.content for each in turn.messages] or [turn.failure.message if turn.failure else ""]


def test_a_skill_is_its_folder(tmp_path: Path, folder: Path) -> None:
    (folder / "picture.png").write_bytes(b"\x89PNG\0\xff")
    (folder / "latin.txt").write_bytes(b"\xe9")
    (folder / ".hidden").write_text("no")
    loaded = Writer(tmp_path).load(manifest("Skill", "rules", {"folder": "skills/rules"}))
    (skill,) = loaded.catalog.manifests
    assert isinstance(skill, resources.Skill)
    assert skill.spec.model_dump(exclude_unset=True) == {
        "description": "What is paid.",
        "instructions": "Pay all.\nSee more/limits.md, ${HOME} and {{- x }}.",
        "files": {"more/limits.md": "Oslo: 190"},
    }
    assert loaded.notices() == []


def test_nothing_outside_of_the_folder_is_read(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "keys").symlink_to(tmp_path / "secrets")
    (folder / "again.md").symlink_to(folder / "more" / "limits.md")
    loaded = Writer(tmp_path).load(manifest("Skill", "rules", {"folder": "skills/rules"}))
    (skill,) = loaded.catalog.manifests
    assert isinstance(skill, resources.Skill)
    assert skill.spec.model_dump()["files"] == {"more/limits.md": "Oslo: 190", "again.md": "Oslo: 190"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("No front matter.", "must begin with '---', name, description, '---'"),
        ("---\nname: rules\n---\nPay all.", "must begin with '---', name, description, '---'"),
        ("---\nname: [\n---\nPay all.", "the front matter of"),
        ("---\nname: rule\ndescription: x\n---\nPay all.", "the name in its SKILL.md is 'rule', not 'rules'"),
        (FRONT, "SKILL.md: instructions: is empty"),
        (FRONT + "x" * MAX_FILE, f"SKILL.md has more than {MAX_FILE:,} bytes"),
        (f"---\nname: rules\ndescription: {'x' * 1025}\n---\nPay all.", "description: is longer than 1024 characters"),
    ],
)
def test_a_folder_that_is_no_skill_is_refused(tmp_path: Path, folder: Path, text: str, says: str) -> None:
    (folder / "SKILL.md").write_text(text)
    (problem,) = Writer(tmp_path).refusal(manifest("Skill", "rules", {"folder": "skills/rules"}))
    assert problem.startswith("m.yaml:6: Skill/default/rules: spec.folder: ")
    assert says in problem


def test_a_skill_is_bounded(tmp_path: Path, folder: Path) -> None:
    given = manifest("Skill", "rules", {"folder": "skills/rules"})
    for number in range(5):
        (folder / f"{number}.txt").write_text("x" * (MAX_BYTES // 5))
    assert f"have more than {MAX_BYTES:,} bytes" in Writer(tmp_path).refusal(given)[0]
    for number in range(MAX_FILES):
        (folder / f"{number}.txt").write_text("")
    assert f"has more than {MAX_FILES} files" in Writer(tmp_path).refusal(given)[0]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (rules(folder="rules"), "Skill/default/rules: spec.description: can't be combined with folder"),
        (rules(instructions=None), "Skill/default/rules: spec.instructions: is missing, or write folder"),
        (
            manifest("Skill", "rules", {"folder": "nowhere"}),
            "Skill/default/rules: spec.folder: nowhere is not a folder",
        ),
        (agent("one", "load_skill", skills=["rules"]), "'load_skill' is the tool that loads skills"),
        (agent("one", skills=["rules", "rules"]), "Agent/default/one: spec.skills: 'rules' appears twice"),
        (
            agent("one", skills=["rules"], executionEngine={"name": "e"}),
            "Agent/default/one: spec.skills: can't be used by an agent that is executed elsewhere",
        ),
    ],
)
def test_what_a_skill_or_its_agent_may_not_say_is_refused(tmp_path: Path, given: Json, says: str) -> None:
    assert says in Writer(tmp_path).refusal(given)[0]


async def test_an_agent_knows_what_its_skills_are_for_and_loads_them(env: Environment) -> None:
    skill = rules(files={"limits.md": "Oslo: 190", "scripts/pay.py": "print('paid')"})
    says = [
        call("load_skill", skill="rules"),
        call("load_skill", skill="rules", file="./limits.md"),
        call("load_skill", skill="rules", file="../../secret.txt"),
        call("load_skill", skill="other"),
    ]
    answers = await said_by(env, [agent("one", skills=["rules"]), skill], *says)
    assert answers[1::2] == [
        "Pay all.\n\nFiles of this skill:\n- limits.md\n- scripts/pay.py",
        "Oslo: 190",
        "Error: the skill rules has no file '../../secret.txt'; its files: limits.md, scripts/pay.py",
        "Error: the arguments of load_skill don't match its schema: $.skill: 'other' is not one of ['rules']",
    ]
    system = env.model.requests[0].body["messages"][0]["content"]
    assert system.startswith("You are one.\n\n# Skills\n")
    assert system.endswith("\n- rules: What is paid.")
    assert "untrusted" not in str(env.model.requests[-1])


async def test_a_speaker_of_a_panel_loads_its_skills_too(env: Environment) -> None:
    env.script(line("one", call("load_skill", skill="rules"), "We pay."))
    panel = team("team", "one", maxRounds=1, synthesizer=False)
    turn = await env.turn_result(await env.start_team([panel, agent("one", skills=["rules"]), rules()]))
    assert "Pay all." in [each.content for each in turn.messages]
    assert "- rules: What is paid." in str(env.model.requests[0])


async def test_a_run_may_not_name_a_folder_of_its_worker(env: Environment, folder: Path) -> None:
    brought = manifest("Skill", "rules", {"folder": str(folder)})
    (wrong,) = await said_by(env, [agent("one", skills=["rules"]), brought])
    assert "spec.folder: is only read for manifests in files" in wrong


async def test_a_skill_stays_as_it_was_when_its_run_began(client: Client, tmp_path: Path, folder: Path) -> None:
    given = [agent("one", skills=["rules"]), manifest("Skill", "rules", {"folder": "skills/rules"})]
    async with Environment.running(client, tmp_path, Writer(tmp_path).load(*given)) as env:
        env.script(line("one", "Wait.", call("load_skill", skill="rules", file="more/limits.md"), "Done."))
        handle = await env.start_team([team("team", "one", maxTurns=2)])
        await env.wait_for_calls(1)
        (folder / "more" / "limits.md").write_text("Oslo: 0")
        assert "Oslo: 190" in [each.content for each in (await env.turn_result(handle)).messages]


async def test_a_program_names_the_folder_itself(env: Environment, folder: Path) -> None:
    one = Agent("one", prompt="You are one.", skills=[Skill(folder)])
    answers = await said_by(env, [each.manifest for each in one.with_dependencies()], call("load_skill", skill="rules"))
    assert answers[1].startswith("Pay all.\nSee more/limits.md")
    with pytest.raises(ValueError, match="is not a folder"):
        Skill(folder / "nowhere")
