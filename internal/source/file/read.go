package file

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

const (
	// maxEntries bounds the names in the directories, so that the wrong path of a large directory causes an error soon.
	maxEntries = 100_000

	// maxTotalBytes bounds the size of all files together.
	maxTotalBytes = 4 * limitsfile.DefaultMaxFileBytes
)

// ErrNoFiles is the reason in the error about a path that exists but has no limits files.
var ErrNoFiles = errors.New("no limits files")

// SkippedEntry is an entry of a directory that Read skips, with the reason.
type SkippedEntry struct{ Path, Reason string }

// String returns path: reason.
func (s SkippedEntry) String() string { return s.Path + ": " + s.Reason }

// Place is the path of the limits files, as in the settings of envoyproxy/ratelimit. If only Root is set, it can be a file.
type Place struct {
	Root, Subdirectory, AppDirectory string // RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY

	// WatchRoot adds files beside the directory AppDirectory: the files with names that start with the name of the
	// directory and a dot, such as config.yaml beside config.
	WatchRoot bool

	// IgnoreDotFiles skips names that start with a dot. Read always skips names that start with two dots, because a
	// Kubernetes ConfigMap repeats its files in a directory with such a name.
	IgnoreDotFiles bool
}

// Path returns the path of the directory or of the file.
func (p Place) Path() string { return filepath.Join(p.Root, p.Subdirectory, p.AppDirectory) }

// Read returns the limits files at p, sorted by path, and the entries that it skipped. In a directory, limits files end in
// .yaml, .yml or .json, or have no extension. Test files, and backup and swap files of editors, are no limits files. Read
// follows symbolic links to files. It follows a link to a directory if p names the link, or if the link belongs to a
// Kubernetes ConfigMap.
//
// The error lists all files that can't be read. It wraps fs.ErrNotExist if p doesn't exist, and ErrNoFiles if p has no
// limits files.
func (p Place) Read() ([]limitsfile.File, []SkippedEntry, error) {
	w := walker{place: p}
	w.run()
	if len(w.errs) > 0 {
		return nil, w.skippedEntries, errors.Join(w.errs...)
	}
	if len(w.files) == 0 {
		return nil, w.skippedEntries, fmt.Errorf("%s: %w (.yaml, .yml, .json or without extension)", p.Path(), ErrNoFiles)
	}
	slices.SortFunc(w.files, func(a, b limitsfile.File) int { return strings.Compare(a.Name, b.Name) })
	return w.files, w.skippedEntries, nil
}

// TestFileSuffix is the end of the names of test files. In a directory of limits files, Read skips test files.
const TestFileSuffix = "_test.yaml"

// fingerprint is a hash of the metadata, the skipped entries and the errors at a place.
type fingerprint [sha256.Size]byte

func (p Place) fingerprint() fingerprint {
	w := walker{place: p, stats: sha256.New()}
	w.run()
	fmt.Fprintf(w.stats, "%q %q", w.skippedEntries, w.errs)
	return fingerprint(w.stats.Sum(nil))
}

type walker struct {
	place Place
	stats hash.Hash // gets the metadata of the files; nil means that the walker reads the files

	files          []limitsfile.File
	skippedEntries []SkippedEntry
	errs           []error
	entryCount     int // the number of names in the visited directories
	byteCount      int // the number of bytes that were read
}

func (w *walker) run() {
	p := w.place
	if !p.WatchRoot || p.AppDirectory == "" {
		w.visitNamedPath(p.Path())
		return
	}
	dir, name := filepath.Dir(p.Path()), filepath.Base(p.Path())
	for _, e := range w.readDirectory(dir) {
		path := filepath.Join(dir, e.Name())
		switch {
		case e.Name() == name:
			w.visitNamedPath(path)
		case strings.HasPrefix(e.Name(), name+"."):
			w.visitEntry(path, e)
		}
	}
}

func (w *walker) addError(err error) { w.errs = append(w.errs, err) }

func (w *walker) skip(path, format string, args ...any) {
	w.skippedEntries = append(w.skippedEntries, SkippedEntry{path, fmt.Sprintf(format, args...)})
}

// visitNamedPath visits a path that the settings name.
func (w *walker) visitNamedPath(path string) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		w.addError(pathError(path, err))
	case info.IsDir():
		w.visitDirectory(path)
	case info.Mode().IsRegular():
		w.visitFile(path, info)
	default:
		w.addError(fmt.Errorf("%s: neither a file nor a directory", path))
	}
}

func (w *walker) visitDirectory(dir string) {
	for _, e := range w.readDirectory(dir) {
		w.visitEntry(filepath.Join(dir, e.Name()), e)
	}
}

func (w *walker) readDirectory(dir string) []fs.DirEntry {
	if w.entryCount > maxEntries {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		w.addError(pathError(dir, err))
	}
	if w.entryCount += len(entries); w.entryCount > maxEntries {
		w.addError(fmt.Errorf("%s: more than %d files; is this the directory of the limits?", dir, maxEntries))
		return nil
	}
	return entries
}

func (w *walker) visitEntry(path string, e fs.DirEntry) {
	name := e.Name()
	isHidden := strings.HasPrefix(name, "..") || w.place.IgnoreDotFiles && strings.HasPrefix(name, ".")
	if isHidden || isEditorFile(name) {
		return
	}
	isLink := e.Type()&fs.ModeSymlink != 0
	if e.IsDir() || isLink && isConfigMapDirectory(path) {
		w.visitDirectory(path)
		return
	}
	if strings.HasSuffix(name, TestFileSuffix) {
		w.skip(path, "a test file of rls test: its name ends in %s", TestFileSuffix)
		return
	}
	extension := strings.ToLower(filepath.Ext(name))
	if !slices.Contains([]string{"", ".yaml", ".yml", ".json"}, extension) {
		w.skip(path, "not a limits file: got extension %s, want .yaml, .yml or .json", filepath.Ext(name))
		return
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && isLink:
		w.addError(fmt.Errorf("%s: a symbolic link to a file that doesn't exist", path))
	case errors.Is(err, fs.ErrNotExist): // somebody has removed the file
	case err != nil:
		w.addError(pathError(path, err))
	case info.IsDir():
		w.skip(path, "a symbolic link to a directory")
	case !info.Mode().IsRegular():
		w.skip(path, "not a regular file")
	default:
		w.visitFile(path, info)
	}
}

func isEditorFile(name string) bool {
	isVimFile := strings.HasPrefix(name, ".") && (strings.HasSuffix(name, ".swp") || strings.HasSuffix(name, ".swx"))
	return isVimFile || strings.HasPrefix(name, ".#") || strings.HasSuffix(name, "~")
}

func isConfigMapDirectory(link string) bool {
	target, err := os.Readlink(link)
	if err != nil || !strings.HasPrefix(target, "..data/") {
		return false
	}
	info, err := os.Stat(link)
	return err == nil && info.IsDir()
}

func (w *walker) visitFile(path string, info fs.FileInfo) {
	if w.stats != nil {
		writeStats(w.stats, path, info)
	} else if w.byteCount <= maxTotalBytes {
		w.read(path)
	}
}

func (w *walker) read(path string) {
	data, err := readFile(path)
	w.byteCount += len(data)
	switch {
	case err != nil:
		w.addError(err)
	case len(data) > limitsfile.DefaultMaxFileBytes:
		w.addError(fmt.Errorf("%s: the file is too large; maximum is %d MiB", path, limitsfile.DefaultMaxFileBytes>>20))
	case w.byteCount > maxTotalBytes:
		w.addError(fmt.Errorf("%s: the limits files are too large together; maximum is %d MiB", path, maxTotalBytes>>20))
	default:
		w.files = append(w.files, limitsfile.File{Name: path, Data: data})
	}
}

// readFile returns the content of a file. If the file is too large, the result has one byte more than allowed, so that
// the caller can reject the file.
func readFile(path string) ([]byte, error) {
	// If path has become a pipe, O_NONBLOCK opens the pipe without waiting for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, pathError(path, err)
	}
	defer f.Close()
	var content bytes.Buffer
	if info, statErr := f.Stat(); statErr == nil {
		content.Grow(int(min(info.Size(), limitsfile.DefaultMaxFileBytes)) + bytes.MinRead)
	}
	if _, err = content.ReadFrom(io.LimitReader(f, limitsfile.DefaultMaxFileBytes+1)); err != nil {
		return nil, pathError(path, err)
	}
	return content.Bytes(), nil
}

func writeStats(w io.Writer, path string, info fs.FileInfo) {
	fmt.Fprintf(w, "%q %s %d %d %d\n", path, info.Mode(), info.Size(), info.ModTime().UnixNano(), inode(info))
}

// pathError returns an error like "PATH: no such file or directory", without the system call that err names.
func pathError(path string, err error) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		err = e.Err
	}
	return fmt.Errorf("%s: %w", path, err)
}
