"""Which bytes lead the loader to code where it has not been?  ``python -m tests.chaos.guided [-max_total_time=60]``

It needs atheris, which is no dependency of Baton: ``pip install atheris``. Options are those of libFuzzer.
"""

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

atheris: Any = importlib.import_module("atheris")
with atheris.instrument_imports(include=["resources", "yaml"]):
    from resources.loader import load_files
    from resources.problems import ManifestError


def main() -> None:
    """Feeds the loader until something is raised that is no ManifestError, or until time is over."""
    with tempfile.TemporaryDirectory() as name:
        oddities = importlib.import_module("tests.chaos.oddities")  # after what is instrumented
        file, corpus = Path(name) / "m.yaml", Path(name) / "corpus"
        corpus.mkdir()
        for number, document in enumerate([*oddities.SAMPLES, *oddities.RARE]):
            (corpus / str(number)).write_text(yaml.safe_dump(document))

        def feed(data: bytes) -> None:
            file.write_bytes(data)
            try:
                loaded = load_files([file])
                [str(each) for each in (*loaded.notices(), *loaded.unresolved(), *loaded.assumed())]
            except ManifestError as error:
                assert all(line.isprintable() for line in str(error).splitlines())

        atheris.Setup([sys.argv[0], str(corpus), f"-artifact_prefix={name}/", *sys.argv[1:]], feed)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
