// Package deploy checks how rls is deployed: the Helm chart, Kustomize, docker-compose.yml, the
// Dockerfile, and the examples for gateways and for GitOps. The types and schemas are those of the
// projects that read these files. Some tests start the built program as a pod would. The package
// is a module of its own, so rls does not depend on those projects.
package deploy
