// Package clients runs the callers of examples/clients against a service. It needs the runtimes of
// their languages, so its tests have the build tag clients, and make test-clients runs them.
package clients
