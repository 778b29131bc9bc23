package main

import "unsafe"

// hostExecute executes a command in the model of Redis, at a time in microseconds since 1970. It
// returns the size of the reply, which hostReply copies.
//
//go:wasmimport redis execute
func hostExecute(now int64, command unsafe.Pointer, size uint32) uint32

//go:wasmimport redis reply
func hostReply(buffer unsafe.Pointer)
