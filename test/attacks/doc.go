// Package attacks lets hostile clients take what they can from a running service. It
// checks the memory of the service and the answers that another client gets. make attacks
// prints a table, which docs/lab/attacks.md shows. The attacks need the machine for themselves,
// so they have a build tag and run after the other tests.
package attacks
