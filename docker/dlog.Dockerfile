# The command line: `./fill` puts the wheels beside this file, built for the Python that runs it, so
# the base has the same one, with venv.
ARG BASE=python:3.11-slim
FROM ${BASE}
COPY wheels /tmp/wheels/
RUN python3 -m venv /opt/dlog \
    && /opt/dlog/bin/pip install --no-cache-dir --no-index /tmp/wheels/*.whl
USER 1001:1001
ENV PATH=/opt/dlog/bin:$PATH
ENTRYPOINT ["dlog"]
