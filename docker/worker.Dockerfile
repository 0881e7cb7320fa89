# A worker, and Spark's executors:  docker build --file docker/worker.Dockerfile --tag icestream/worker:0.1.0 .
# Base images are pinned by their full version; docs/deployment.md tells how to pin them by digest.
ARG PYTHON=python:3.11.14-slim-bookworm
ARG JAVA=eclipse-temurin:17.0.17_10-jre
# Beyond S3: gcs, azure, or both with a comma in between.
ARG STORES=

FROM ${JAVA} AS java

FROM ${PYTHON} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY requirements/build.txt requirements/worker.txt requirements/
# PySpark comes as source, which is why its wheel is built first: the image gets no tools to build with.
RUN pip install --require-hashes -r requirements/build.txt \
    && pip wheel --no-deps --no-build-isolation --require-hashes --wheel-dir /wheels -r requirements/worker.txt
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
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && python -m venv --without-pip /opt/icestream \
    && pip --python /opt/icestream/bin/python install --no-deps --no-index /wheels/*.whl \
    && ln -s "$(/opt/icestream/bin/python -c 'import pyspark; print(*pyspark.__path__)')" /opt/icestream/spark
# The JARs of Iceberg and JDBC, so that a worker starts without asking anybody, and as they were when they were locked.
ENV JAVA_HOME=/opt/java/openjdk
COPY --from=java /opt/java/openjdk /opt/java/openjdk
COPY scripts/fetch_jars scripts/sbom scripts/
COPY requirements/jars.sha256 requirements/store-jars.sha256 requirements/
ARG STORES
RUN ICESTREAM_STORES="$STORES" ICESTREAM_JARS_DIR=/opt/icestream/ivy /opt/icestream/bin/python scripts/fetch_jars \
    && rm -r /opt/icestream/ivy/cache
WORKDIR /opt/icestream/ivy/jars
# What is locked is there, and what is there is locked.
RUN sha256sum --check --strict /src/requirements/jars.sha256 \
    && sha256sum -- *.jar > /src/jars.sha256 \
    && ! grep --invert-match --line-regexp --fixed-strings --file=/src/requirements/jars.sha256 \
        --file=/src/requirements/store-jars.sha256 /src/jars.sha256
WORKDIR /src
RUN /opt/icestream/bin/python scripts/sbom --name icestream-worker --debian /var/lib/dpkg/status \
        --java "$JAVA_HOME" --jars /opt/icestream/ivy/jars --jars /opt/icestream/spark/jars \
    > /opt/icestream/sbom.cdx.json

FROM ${PYTHON}
LABEL org.opencontainers.image.title="icestream-worker" \
      org.opencontainers.image.description="Icestream's worker, and the executors of its Spark"
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin icestream
COPY --from=java /opt/java/openjdk /opt/java/openjdk
COPY --from=build /opt/icestream /opt/icestream
COPY --chmod=755 docker/spark-executor /usr/local/bin/
ARG STORES
ENV PATH=/opt/icestream/bin:/opt/java/openjdk/bin:$PATH \
    JAVA_HOME=/opt/java/openjdk \
    SPARK_HOME=/opt/icestream/spark \
    PYTHONUNBUFFERED=1 \
    ICESTREAM_JARS_DIR=/opt/icestream/ivy \
    ICESTREAM_STORES=$STORES
WORKDIR /tmp
USER 10001:10001
ENTRYPOINT ["icestream"]
CMD ["worker"]
