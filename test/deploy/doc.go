// Package deploy checks what deployments are copied from: docker-compose.yml, the
// Dockerfile, the Helm chart and the examples for Istio, Envoy Gateway and Contour,
// against the types of those projects. It is a module of its own, so that their
// dependencies aren't those of rls.
package deploy
