//go:build !wasip1

package main

import "unsafe"

// The program runs only in package simulate. These functions let tools read it anywhere.

func hostExecute(uint32, int64, unsafe.Pointer, uint32) uint32 {
	panic("the program runs only in package simulate")
}

func hostReply(unsafe.Pointer) {}

func hostPause(int64) {}
