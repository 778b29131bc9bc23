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
	// maxEntries bounds the listed names, so that a path given by mistake is reported soon.
	maxEntries = 100_000

	// maxTotalBytes bounds all files together.
	maxTotalBytes = 4 * limitsfile.DefaultMaxFileBytes
)

// ErrNoFiles is wrapped by the error for a path that exists and has no limits files.
var ErrNoFiles = errors.New("no limits files")

// Skipped is an entry of a directory that was skipped, and why.
type Skipped struct{ Path, Reason string }

// String returns path: reason.
func (s Skipped) String() string { return s.Path + ": " + s.Reason }

// Place is where the limits files are, as in the settings of envoyproxy/ratelimit. Root alone can be a file.
type Place struct {
	Root, Subdirectory, AppDirectory string // RUNTIME_ROOT and so on

	// WatchRoot adds the siblings of the directory Root/Subdirectory/AppDirectory
	// whose names start with the directory's name and a dot: config.yaml.
	WatchRoot bool

	// IgnoreDotFiles skips names that start with a dot. Names with two dots are always skipped: Kubernetes
	// ConfigMaps have such directories, which show each file a second time.
	IgnoreDotFiles bool
}

// Path returns the path that p stands for.
func (p Place) Path() string { return filepath.Join(p.Root, p.Subdirectory, p.AppDirectory) }

// Read returns the limits files at p, sorted by path, and the entries that it skipped. In a directory, these are
// the files that end in .yaml, .yml or .json or have no extension, except test files, and backup and swap files of editors. Read
// follows symbolic links to files, and to directories if p names them or they belong to a Kubernetes ConfigMap.
//
// The error lists everything that can't be read. It wraps fs.ErrNotExist if p doesn't exist, and ErrNoFiles if
// there are no limits files.
func (p Place) Read() ([]limitsfile.File, []Skipped, error) {
	w := walker{place: p}
	w.run()
	if len(w.errs) > 0 {
		return nil, w.skipped, errors.Join(w.errs...)
	}
	if len(w.files) == 0 {
		return nil, w.skipped, fmt.Errorf("%s: %w (.yaml, .yml, .json or without extension)", p.Path(), ErrNoFiles)
	}
	slices.SortFunc(w.files, func(a, b limitsfile.File) int { return strings.Compare(a.Name, b.Name) })
	return w.files, w.skipped, nil
}

// TestFileSuffix is the end of the names of test files. In a directory of limits files, they are skipped.
const TestFileSuffix = "_test.yaml"

// fingerprint is a hash of the metadata at a place, and of everything else that a walker reports.
type fingerprint [sha256.Size]byte

func (p Place) fingerprint() fingerprint {
	w := walker{place: p, stats: sha256.New()}
	w.run()
	fmt.Fprintf(w.stats, "%q %q", w.skipped, w.errs)
	return fingerprint(w.stats.Sum(nil))
}

// walker visits the limits files at a place.
type walker struct {
	place Place
	stats hash.Hash // gets the metadata of the files; nil to read them

	files   []limitsfile.File
	skipped []Skipped
	errs    []error
	entries int // listed so far
	bytes   int // read so far
}

func (w *walker) run() {
	p := w.place
	if !p.WatchRoot || p.AppDirectory == "" {
		w.root(p.Path())
		return
	}
	dir, base := filepath.Dir(p.Path()), filepath.Base(p.Path())
	for _, e := range w.list(dir) {
		path := filepath.Join(dir, e.Name())
		switch {
		case e.Name() == base:
			w.root(path)
		case strings.HasPrefix(e.Name(), base+"."):
			w.entry(path, e)
		}
	}
}

func (w *walker) fail(err error) { w.errs = append(w.errs, err) }

func (w *walker) skip(path, format string, args ...any) {
	w.skipped = append(w.skipped, Skipped{path, fmt.Sprintf(format, args...)})
}

// root visits a path that the user named.
func (w *walker) root(path string) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		w.fail(withoutOperation(path, err))
	case info.IsDir():
		w.directory(path)
	case info.Mode().IsRegular():
		w.file(path, info)
	default:
		w.fail(fmt.Errorf("%s: neither a file nor a directory", path))
	}
}

func (w *walker) directory(dir string) {
	for _, e := range w.list(dir) {
		w.entry(filepath.Join(dir, e.Name()), e)
	}
}

func (w *walker) list(dir string) []fs.DirEntry {
	if w.entries > maxEntries {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		w.fail(withoutOperation(dir, err))
	}
	if w.entries += len(entries); w.entries > maxEntries {
		w.fail(fmt.Errorf("%s: more than %d files; is this the directory of the limits?", dir, maxEntries))
		return nil
	}
	return entries
}

func (w *walker) entry(path string, e fs.DirEntry) {
	name := e.Name()
	if strings.HasPrefix(name, "..") || w.place.IgnoreDotFiles && strings.HasPrefix(name, ".") || isEditorFile(name) {
		return
	}
	link := e.Type()&fs.ModeSymlink != 0
	if e.IsDir() || link && isConfigMapDirectory(path) {
		w.directory(path)
		return
	}
	if strings.HasSuffix(name, TestFileSuffix) {
		w.skip(path, "a test file of rls test: its name ends in %s", TestFileSuffix)
		return
	}
	ext := strings.ToLower(filepath.Ext(name))
	if !slices.Contains([]string{"", ".yaml", ".yml", ".json"}, ext) {
		w.skip(path, "not a limits file: got extension %s, want .yaml, .yml or .json", filepath.Ext(name))
		return
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && link:
		w.fail(fmt.Errorf("%s: a symbolic link to a file that doesn't exist", path))
	case errors.Is(err, fs.ErrNotExist): // removed since the directory was listed
	case err != nil:
		w.fail(withoutOperation(path, err))
	case info.IsDir():
		w.skip(path, "a symbolic link to a directory")
	case !info.Mode().IsRegular():
		w.skip(path, "not a regular file")
	default:
		w.file(path, info)
	}
}

// isEditorFile reports whether an editor keeps a file of that name beside the file that it edits.
func isEditorFile(name string) bool {
	vim := strings.HasPrefix(name, ".") && (strings.HasSuffix(name, ".swp") || strings.HasSuffix(name, ".swx"))
	return vim || strings.HasPrefix(name, ".#") || strings.HasSuffix(name, "~")
}

func isConfigMapDirectory(link string) bool {
	target, err := os.Readlink(link)
	if err != nil || !strings.HasPrefix(target, "..data/") {
		return false
	}
	info, err := os.Stat(link)
	return err == nil && info.IsDir()
}

func (w *walker) file(path string, info fs.FileInfo) {
	if w.stats != nil {
		writeStats(w.stats, path, info)
	} else if w.bytes <= maxTotalBytes {
		w.read(path)
	}
}

func (w *walker) read(path string) {
	data, err := readFile(path)
	w.bytes += len(data)
	switch {
	case err != nil:
		w.fail(err)
	case len(data) > limitsfile.DefaultMaxFileBytes:
		w.fail(fmt.Errorf("%s: the file is too large; maximum is %d MiB", path, limitsfile.DefaultMaxFileBytes>>20))
	case w.bytes > maxTotalBytes:
		w.fail(fmt.Errorf("%s: the limits files are too large together; maximum is %d MiB", path, maxTotalBytes>>20))
	default:
		w.files = append(w.files, limitsfile.File{Name: path, Data: data})
	}
}

// readFile returns the start of a file: one byte more than a file may have.
func readFile(path string) ([]byte, error) {
	// O_NONBLOCK: if path has become a pipe, opening it must not wait for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, withoutOperation(path, err)
	}
	defer f.Close()
	var content bytes.Buffer
	if info, statErr := f.Stat(); statErr == nil {
		content.Grow(int(min(info.Size(), limitsfile.DefaultMaxFileBytes)) + bytes.MinRead)
	}
	if _, err = content.ReadFrom(io.LimitReader(f, limitsfile.DefaultMaxFileBytes+1)); err != nil {
		return nil, withoutOperation(path, err)
	}
	return content.Bytes(), nil
}

func writeStats(w io.Writer, path string, info fs.FileInfo) {
	fmt.Fprintf(w, "%q %s %d %d %d\n", path, info.Mode(), info.Size(), info.ModTime().UnixNano(), inode(info))
}

// withoutOperation returns path: no such file or directory.
func withoutOperation(path string, err error) error {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		err = pe.Err
	}
	return fmt.Errorf("%s: %w", path, err)
}
