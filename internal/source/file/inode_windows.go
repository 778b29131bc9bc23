package file

import "io/fs"

// inode returns 0, because the metadata of Windows has no number of the file.
func inode(fs.FileInfo) uint64 { return 0 }
