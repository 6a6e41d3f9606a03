# An earlier state of the project, its tree the context, on the image of this one: its code and its model, this one's packages.
ARG NEXT=kvquilt:dev

# hadolint ignore=DL3006
FROM ${NEXT} AS wheel
# hadolint ignore=DL3002
USER 0
WORKDIR /build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY . .
RUN pip install --no-cache-dir -c constraints.txt setuptools \
    && pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

# hadolint ignore=DL3006
FROM ${NEXT}
USER 0
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip uninstall -y kvquilt && pip install --no-deps --no-index --no-cache-dir /wheels/*.whl && rm -r /models/default
COPY cluster/demo_assets/model /models/default
USER 1000
