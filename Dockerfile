FROM python:3.11-slim
WORKDIR /srv/meshwright
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY meshwright meshwright
COPY app app
COPY solver solver
COPY costmodels costmodels
COPY migrations migrations
RUN pip install --no-cache-dir -c requirements.lock '.[postgres]' && useradd --uid 1000 --create-home meshwright
USER meshwright
CMD ["meshwright", "serve", "--host", "0.0.0.0"]
