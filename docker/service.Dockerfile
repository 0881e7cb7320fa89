# The service and its migration:  docker build --file docker/service.Dockerfile --tag icestream/service:0.1.0 .
# Base images are pinned by their full version; docs/deployment.md tells how to pin them by digest.
ARG PYTHON=python:3.11.14-slim-bookworm

FROM ${PYTHON} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY requirements/build.txt requirements/service.txt requirements/
RUN pip install --require-hashes -r requirements/build.txt \
    && pip wheel --no-deps --no-build-isolation --require-hashes --wheel-dir /wheels -r requirements/service.txt
COPY pyproject.toml LICENSE README.md ./
COPY service/ service/
COPY worker/ worker/
COPY telemetry/ telemetry/
COPY stores/ stores/
COPY staging/ staging/
COPY trust/ trust/
COPY icestream/ icestream/
COPY conformance/ conformance/
COPY openapi/openapi.json openapi/
# Without pip, which nothing needs there.
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && python -m venv --without-pip /opt/icestream \
    && pip --python /opt/icestream/bin/python install --no-deps --no-index /wheels/*.whl
COPY scripts/sbom scripts/
RUN /opt/icestream/bin/python scripts/sbom --name icestream-service --debian /var/lib/dpkg/status \
    > /opt/icestream/sbom.cdx.json

FROM ${PYTHON}
LABEL org.opencontainers.image.title="icestream-service" \
      org.opencontainers.image.description="Icestream's HTTP API, page, scheduler and migrations"
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin icestream
COPY --from=build /opt/icestream /opt/icestream
ENV PATH=/opt/icestream/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    ICESTREAM_DATA_DIR=/tmp/icestream
WORKDIR /tmp
USER 10001:10001
EXPOSE 8000
ENTRYPOINT ["icestream"]
CMD ["serve"]
