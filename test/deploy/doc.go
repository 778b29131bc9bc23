// Package deploy checks docker-compose.yml, the Dockerfile, the Helm chart and the
// examples for Istio, Envoy Gateway and Contour against the types of those projects.
// The package is a module of its own, so rls does not depend on those projects.
package deploy
