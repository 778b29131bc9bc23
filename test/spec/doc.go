// Package spec compares the whole service with a sequential reference, from both sides: the service
// never admits more than the reference, and never denies what the reference admits, beyond the bounds
// of the docs. docs/lab/simulation.md explains how to run it.
//
// The reference is written from the docs and not from the code. It has no caches, batches, leases or
// threads, and its counters are lists of charges:
//
//   - counter_test.go counts the hits of one key, with each algorithm;
//   - rules_test.go has the limits of a trace, and finds the rule of a descriptor;
//   - reference_test.go decides requests.
//
// The traces are random:
//
//   - settings_test.go covers each pair of settings with few stacks;
//   - stack_test.go runs the real service on real Redis servers;
//   - generate_test.go draws the limits and steps of a trace from a seed;
//   - run_test.go sends a trace to the real service and to the reference, and compares the answers;
//   - spec_test.go runs many traces, and shortens a trace that fails.
package spec
