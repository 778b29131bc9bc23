package main

import "unsafe"

// hostExecute executes a command in the model of a Redis server, at a time in microseconds since 1970. It
// returns the size of the reply, which hostReply copies.
//
//go:wasmimport host execute
func hostExecute(server uint32, now int64, command unsafe.Pointer, size uint32) uint32

//go:wasmimport host reply
func hostReply(buffer unsafe.Pointer)

// hostPause moves the clock, in nanoseconds. The program does not run in this time.
//
//go:wasmimport host pause
func hostPause(nanos int64)
