//go:build unix

package file

import (
	"io/fs"
	"syscall"
)

// inode returns the number of the file, which differs from that of a file that it replaces.
func inode(info fs.FileInfo) uint64 {
	stat, _ := info.Sys().(*syscall.Stat_t)
	return stat.Ino
}
