package file

import (
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// ReadList returns the content of the file of a list, up to one byte more than such a file may have.
func ReadList(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, withoutOperation(path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	return readFile(path)
}

// Parse parses limits files. Their lists can be in files of their own.
func Parse(files []limitsfile.File, o limitsfile.Options) (*limitsfile.Set, error) {
	o.ReadList = ReadList
	return limitsfile.Parse(files, o)
}

// lists has the digests of the files with lists, or of their errors, by path.
type lists map[string][sha256.Size]byte

// read is ReadList, and adds the digest to l.
func (l lists) read(path string) ([]byte, error) {
	data, err := ReadList(path)
	if err != nil {
		l[path] = sha256.Sum256([]byte(err.Error()))
	} else {
		l[path] = sha256.Sum256(data)
	}
	return data, err
}

func (l lists) writeStats(w io.Writer) {
	for _, path := range slices.Sorted(maps.Keys(l)) {
		if info, err := os.Stat(path); err != nil {
			fmt.Fprintf(w, "%q %v\n", path, err)
		} else {
			writeStats(w, path, info)
		}
	}
}
