# A worker, not as root, with exactly the packages of the lock.
FROM python:3.13-slim
WORKDIR /baton
COPY requirements.lock ./
RUN pip install --no-cache-dir --require-hashes --requirement requirements.lock
COPY pyproject.toml README.md baton.py worker.py ./
COPY resources resources
COPY conversation conversation
COPY workflows workflows
COPY activities activities
COPY starter starter
RUN pip install --no-cache-dir --no-deps --no-build-isolation . \
 && useradd --create-home baton && mkdir /data /manifests && chown baton /data
USER baton
CMD ["python", "worker.py", "/manifests"]
