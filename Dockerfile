# docker build -t rls .
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /rls ./cmd/rls

# This image has the certificates of public authorities and user 65532. It has no shell and
# no packages.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /rls /bin/rls
# Images of envoyproxy/ratelimit have their binary here. By this name rls takes no arguments.
COPY --from=build /rls /bin/ratelimit
USER 65532:65532
EXPOSE 8080 8081 6070
ENTRYPOINT ["/bin/rls"]
