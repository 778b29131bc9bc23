//go:build unix

package file

import (
	"io/fs"
	"syscall"
)

// inode returns the number of the file. A file that replaces another file has another number.
func inode(info fs.FileInfo) uint64 {
	stat, _ := info.Sys().(*syscall.Stat_t)
	return stat.Ino
}
