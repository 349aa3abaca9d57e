# The image for those who have Docker: docker buildx build --platform linux/amd64,linux/arm64 -t REGISTRY/sluice .
# (`make image` makes the same one without.) Each platform builds for itself: .cargo/config.toml links statically
# for the machine that it runs on.
FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    cargo build --locked --release && \
    install -D -m 755 target/*-linux-gnu/release/sluice /image/sluice && \
    install -d -m 1777 /image/tmp

FROM scratch
LABEL org.opencontainers.image.title="sluice" \
      org.opencontainers.image.description="Lifecycle phases for sandboxes: a Kubernetes admission webhook and hook runner" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /image/ /
USER 65532:65532
ENTRYPOINT ["/sluice"]
