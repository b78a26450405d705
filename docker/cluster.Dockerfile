# ZooKeeper and bookies, stock, in one image: `./fill` puts their jars beside this file. The base
# needs bash and Java 17 or newer.
ARG BASE=eclipse-temurin:17-jre
FROM ${BASE}
COPY serve jars /opt/bookkeeper/
# A volume that is mounted at /data begins as a copy of it, owner included.
RUN mkdir /data && chown 1001:1001 /data
USER 1001:1001
ENTRYPOINT ["/opt/bookkeeper/serve"]
HEALTHCHECK --interval=2s --timeout=5s --start-period=60s --retries=5 \
    CMD ["/opt/bookkeeper/serve", "check"]
