// Package source reads limits from where they are kept.
package source

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/seed-81f232ab/rls/descriptors"
)

const (
	// maxEntries bounds how many names are looked at below a directory, so that
	// a path given by mistake is told soon.
	maxEntries = 100_000

	// maxWatched bounds the files that are watched themselves, besides their
	// directories.
	maxWatched = 1000

	// maxTotalBytes bounds all files together.
	maxTotalBytes = 4 * descriptors.MaxFileBytes
)

// ErrNoFiles is wrapped by the error that tells that a place exists and holds no
// limits file.
var ErrNoFiles = errors.New("no limits files")

// Options say how to read directories.
type Options struct {
	// IgnoreDotFiles leaves out files and directories whose name starts with a
	// dot. Names that start with two are left out in any case: the hidden
	// directories of a Kubernetes ConfigMap, which show its files once more.
	IgnoreDotFiles bool
}

// Skipped is an entry of a directory that was left out, and why.
type Skipped struct{ Path, Reason string }

// String is path: reason.
func (s Skipped) String() string { return s.Path + ": " + s.Reason }

// Files reads the limits files at path: a file of any name, or all files below a
// directory that end in .yaml, .yml or .json or have no extension, sorted by
// path. A symbolic link is followed if it is path itself or leads to a file, or to a
// directory of a Kubernetes ConfigMap. What editors leave behind is left out. The
// error tells all that could not be read; it wraps fs.ErrNotExist if there is
// nothing at path, and ErrNoFiles if there are no files.
func Files(path string, o Options) ([]descriptors.File, []Skipped, error) {
	r := reader{Options: o}
	r.named(path)
	return r.done(path)
}

// Runtime is where envoyproxy/ratelimit looks for its limits. Where Root is all
// that is given, that is the place: a directory or a file.
type Runtime struct {
	Root, Subdirectory, AppDirectory string // RUNTIME_ROOT and so on

	// WatchRoot takes, besides the directory Root/Subdirectory/AppDirectory, what
	// stands beside it and starts with its name and a dot: config.yaml.
	WatchRoot bool
}

// Path is the directory that Files reads.
func (r Runtime) Path() string { return filepath.Join(r.Root, r.Subdirectory, r.AppDirectory) }

// Files is like the function Files for r.Path.
func (r Runtime) Files(o Options) ([]descriptors.File, []Skipped, error) {
	rd := reader{Options: o}
	rd.runtime(r)
	return rd.done(r.Path())
}

// runtime reads what place names.
func (r *reader) runtime(place Runtime) {
	if !place.WatchRoot || place.AppDirectory == "" {
		r.named(place.Path())
		return
	}
	dir, base := filepath.Dir(place.Path()), filepath.Base(place.Path())
	r.spots.way(place.Path())
	for _, e := range r.list(dir) {
		path := filepath.Join(dir, e.Name())
		switch {
		case e.Name() == base:
			r.named(path)
		case strings.HasPrefix(e.Name(), base+"."):
			r.entry(path, e)
		}
	}
}

// reader gathers files.
type reader struct {
	Options
	files   []descriptors.File
	skipped []Skipped
	errs    []error
	seen    int // entries
	bytes   int
	spots   spots // all that was looked at
}

func (r *reader) done(path string) ([]descriptors.File, []Skipped, error) {
	if len(r.errs) > 0 {
		return nil, r.skipped, errors.Join(r.errs...)
	}
	if len(r.files) == 0 {
		return nil, r.skipped, fmt.Errorf("%s: %w (.yaml, .yml, .json or without extension)", path, ErrNoFiles)
	}
	slices.SortFunc(r.files, func(a, b descriptors.File) int { return strings.Compare(a.Name, b.Name) })
	return r.files, r.skipped, nil
}

func (r *reader) fail(err error) { r.errs = append(r.errs, err) }

func (r *reader) skip(path, format string, args ...any) {
	r.skipped = append(r.skipped, Skipped{path, fmt.Sprintf(format, args...)})
}

// named reads a path that was asked for by name.
func (r *reader) named(path string) {
	r.spots.way(path)
	info, err := os.Stat(path)
	switch {
	case err != nil:
		r.fail(plain(path, err))
	case info.IsDir():
		r.directory(path)
	case info.Mode().IsRegular():
		r.file(path)
	default:
		r.fail(fmt.Errorf("%s: neither a file nor a directory", path))
	}
}

// directory reads what is in dir and below.
func (r *reader) directory(dir string) {
	for _, e := range r.list(dir) {
		r.entry(filepath.Join(dir, e.Name()), e)
	}
}

func (r *reader) list(dir string) []fs.DirEntry {
	if r.seen > maxEntries {
		return nil
	}
	r.spots.whole(dir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		r.fail(plain(dir, err))
	}
	if r.seen += len(entries); r.seen > maxEntries {
		r.fail(fmt.Errorf("%s: more than %d files are here; this is hardly the place of the limits", dir, maxEntries))
		return nil
	}
	return entries
}

// entry reads an entry of a directory, if it counts.
func (r *reader) entry(path string, e fs.DirEntry) {
	name := e.Name()
	switch {
	case strings.HasPrefix(name, ".."), r.IgnoreDotFiles && strings.HasPrefix(name, "."):
		return
	case editors(name):
		return
	}
	link := e.Type()&fs.ModeSymlink != 0
	if link {
		r.spots.way(path)
	}
	if e.IsDir() || link && configMaps(path) {
		r.directory(path)
		return
	}
	ext := strings.ToLower(filepath.Ext(name))
	if !slices.Contains([]string{"", ".yaml", ".yml", ".json"}, ext) {
		r.skip(path, "not a limits file: it ends in %s, not in .yaml, .yml or .json", filepath.Ext(name))
		return
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && link:
		r.fail(fmt.Errorf("%s: a symbolic link to a file that doesn't exist", path))
	case errors.Is(err, fs.ErrNotExist): // gone since the directory was read
	case err != nil:
		r.fail(plain(path, err))
	case info.IsDir():
		r.skip(path, "a symbolic link to a directory")
	case !info.Mode().IsRegular():
		r.skip(path, "not a regular file")
	default:
		r.file(path)
	}
}

// editors tells whether name is what an editor keeps beside a file: a lock, a swap
// file or a copy of what it was.
func editors(name string) bool {
	vim := strings.HasPrefix(name, ".") && (strings.HasSuffix(name, ".swp") || strings.HasSuffix(name, ".swx"))
	return vim || strings.HasPrefix(name, ".#") || strings.HasSuffix(name, "~")
}

// configMaps tells whether a link leads to a directory as in a Kubernetes ConfigMap
// that has files below directories.
func configMaps(link string) bool {
	target, err := os.Readlink(link)
	if err != nil || !strings.HasPrefix(target, "..data/") {
		return false
	}
	info, err := os.Stat(link)
	return err == nil && info.IsDir()
}

// file reads a regular file, unless those before are too much already.
func (r *reader) file(path string) {
	if r.bytes > maxTotalBytes {
		return
	}
	// Should it be a pipe by now, this doesn't wait for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		r.fail(plain(path, err))
		return
	}
	defer f.Close()
	if len(r.files) < maxWatched {
		r.spots.whole(path)
	}
	data, err := io.ReadAll(io.LimitReader(f, descriptors.MaxFileBytes+1))
	r.bytes += len(data)
	switch {
	case err != nil:
		r.fail(plain(path, err))
	case len(data) > descriptors.MaxFileBytes:
		r.fail(fmt.Errorf("%s: more than %d MiB, too large for a limits file", path, descriptors.MaxFileBytes>>20))
	case r.bytes > maxTotalBytes:
		r.fail(fmt.Errorf("%s: the limits files are more than %d MiB together", path, maxTotalBytes>>20))
	default:
		r.files = append(r.files, descriptors.File{Name: path, Data: data})
	}
}

// plain is err without the operation: path: no such file or directory.
func plain(path string, err error) error {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		err = pe.Err
	}
	return fmt.Errorf("%s: %w", path, err)
}
