// Package simulate runs replicas of rls with a simulated network and Redis on a virtual clock.
// docs/lab/simulation.md explains how, and which promises it checks.
//
// The simulated process is the folder program, built for WebAssembly. WebAssembly in Go has one
// thread without preemption, and gets clock and random numbers from its host. So the order of
// goroutines, of maps and of select depends on nothing but the seed.
package simulate
