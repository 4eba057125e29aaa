FROM python:3.11-slim@sha256:9c900dea9e8fb7e16277c179b555cc72d29a352dbc33cff48ad5a0412fd5bfc7
WORKDIR /srv/meshwright
COPY pyproject.toml requirements-image.lock README.md LICENSE ./
COPY meshwright meshwright
COPY app app
COPY solver solver
COPY costmodels costmodels
COPY migrations migrations
# No file is installed whose hash is not in the lock, the builder of our own package included.
RUN pip install --no-cache-dir --require-hashes --no-deps -r requirements-image.lock \
    && pip install --no-cache-dir --no-deps --no-build-isolation --no-index . \
    && useradd --uid 1000 --create-home meshwright
USER meshwright
# Compiled loops are kept by user: the first plan of a container need not compile them.
RUN meshwright doctor --compile
CMD ["meshwright", "serve", "--host", "0.0.0.0"]
