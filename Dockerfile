# docker build -t rls .
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN go run ./deploy/scripts/licenses > /THIRD_PARTY.txt
ARG TARGETOS TARGETARCH
ENV GOOS=$TARGETOS GOARCH=$TARGETARCH
# By default, the version comes from .git.
ARG VERSION COMMIT DATE
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w $(deploy/scripts/ldflags)" -o /rls ./cmd/rls

# This image has the certificates of public authorities and user 65532. It has no shell and
# no packages. rls writes no file, so the root can be read-only.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /rls /bin/rls
# Images of envoyproxy/ratelimit have their binary here. By this name rls takes no arguments.
COPY --from=build /rls /bin/ratelimit
COPY --from=build /THIRD_PARTY.txt /src/LICENSE /usr/share/doc/rls/
USER 65532:65532
EXPOSE 8080 8081 6070
ENTRYPOINT ["/bin/rls"]
