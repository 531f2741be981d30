# Redis 8, or another server, with redis-rl:
#
#   docker build -t redis-rl .
#   docker build -t valkey-rl --build-arg SERVER_IMAGE=valkey/valkey:9 .
#
# Checked by a linter, and against the entrypoints of the official images; it was written where no container
# engine runs. The `image` job of .github/workflows/test.yml is what builds and runs it.

# glibc of the builder must not be newer than the server image's: Debian bookworm's is the older of the two
# that the official images have been built on. Alpine images, which have no glibc, do not work.
ARG RUST_IMAGE=rust:1-bookworm
ARG SERVER_IMAGE=redis:8

FROM ${RUST_IMAGE} AS builder
# libclang reads the header of the module API.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends libclang-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /build
# All members of the workspace, of which .dockerignore leaves out what was built.
COPY . .
RUN cargo build --release --locked

FROM ${SERVER_IMAGE}
# Not /usr/local/lib/redis/modules: the entrypoint of redis:8 loads by itself what is there, other images do
# not, and a module that is loaded twice stops the server.
COPY --from=builder --chmod=0755 /build/target/release/libredis_rl.so /usr/lib/redis/modules/
# The entrypoints put the server's name in front of options. Your own options replace these, so they have
# to name the module again: in the configuration file, where there is one. CONFIG REWRITE writes the module into
# that file, and a server that is told twice to load it, by the file and by an option, does not start.
CMD ["--loadmodule", "/usr/lib/redis/modules/libredis_rl.so"]
