package file

import "io/fs"

// inode returns 0, because the metadata of Windows have no number of a file.
func inode(fs.FileInfo) uint64 { return 0 }
